-- find_queued: queued jobs, newest first. They have no worker.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM (SELECT r.seq FROM ready r UNION ALL SELECT d.seq FROM delayed d) q
  CROSS JOIN job j ON j.seq = q.seq JOIN class c ON c.class_id = j.class_id
 WHERE :worker_id IS NULL
-- use filters
   AND q.seq < :before ORDER BY q.seq DESC LIMIT :limit;
