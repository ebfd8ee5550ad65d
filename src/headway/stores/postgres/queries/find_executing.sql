-- find_executing: executing jobs, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.lease l JOIN {schema}.job j ON j.seq = l.seq JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE (:worker_id::text IS NULL OR l.worker_id = :worker_id)
-- use filters
   AND l.seq < :before ORDER BY l.seq DESC LIMIT :limit;
