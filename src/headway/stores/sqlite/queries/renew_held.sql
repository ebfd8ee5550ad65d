-- renew_held: what a renewal must know of the leases a worker holds; no payloads.
-- params  worker_id, namespace_id
SELECT j.job_id, l.token, l.started_at, l.cancel_at, c.rung, l.assigned
  FROM lease l JOIN job j ON j.seq = l.seq JOIN class c ON c.class_id = l.class_id
 WHERE l.worker_id = :worker_id AND j.namespace_id = :namespace_id ORDER BY l.seq;
