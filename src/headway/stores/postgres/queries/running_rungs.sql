-- running_rungs: the jobs that run, with the rung each asked for and was given.
-- params  namespace_id
SELECT j.job_id, c.rung, l.assigned, l.started_at FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
  JOIN {schema}.job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id ORDER BY l.seq;
