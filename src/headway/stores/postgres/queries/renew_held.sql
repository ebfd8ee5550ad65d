-- renew_held: what a renewal must know of the leases a worker holds; no payloads. The worker is locked, so they can be counted.
-- params  worker_id, namespace_id
WITH held AS (SELECT l.* FROM {schema}.lease l WHERE l.worker_id = :worker_id),
counted AS (UPDATE {schema}.worker w SET running = (SELECT count(*) FROM held)
             WHERE w.worker_id = :worker_id AND w.running <> (SELECT count(*) FROM held))
SELECT j.job_id, l.token, l.started_at, l.cancel_at, c.rung, l.assigned FROM held l JOIN {schema}.job j ON j.seq = l.seq
  JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE j.namespace_id = :namespace_id ORDER BY l.seq;
