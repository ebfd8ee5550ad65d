-- find_any: jobs in any state, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM job j CROSS JOIN class c ON c.class_id = j.class_id
  LEFT JOIN lease l ON l.seq = j.seq LEFT JOIN outcome o ON o.seq = j.seq
 WHERE (:worker_id IS NULL OR coalesce(l.worker_id, o.worker_id) = :worker_id)
-- use filters
   AND j.seq < :before ORDER BY j.seq DESC LIMIT :limit;
