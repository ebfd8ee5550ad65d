-- find_queued: queued jobs, newest first. They have no worker.
-- params  worker_id, namespace_id, before, task, lane, tenant, submitted_before_at, submitted_after_at, limit
SELECT j.seq FROM (SELECT r.seq FROM ready r UNION ALL SELECT d.seq FROM delayed d) q
  JOIN job j ON j.seq = q.seq JOIN class c ON c.class_id = j.class_id
 WHERE :worker_id IS NULL
-- use filters
