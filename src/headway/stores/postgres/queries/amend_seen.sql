-- amend_seen: the running jobs among these, with the rung each asked for and was given, and who holds it; locked.
-- params  namespace_id, job_ids
SELECT j.job_id, l.seq, c.rung, l.assigned, l.worker_id FROM {schema}.job j JOIN {schema}.lease l ON l.seq = j.seq
  JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE j.namespace_id = :namespace_id AND j.job_id = ANY (:job_ids::text[]) ORDER BY l.seq FOR UPDATE OF l;
