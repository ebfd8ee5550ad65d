-- executing: the jobs that run, as far as those that wait are concerned.
-- params  namespace_id
SELECT j.task, c.lane, l.worker_id, l.started_at, l.held FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
  JOIN {schema}.job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id ORDER BY l.seq;
