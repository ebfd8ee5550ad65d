-- find_completed: completed jobs, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.outcome_completed o JOIN {schema}.job j ON j.seq = o.seq JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE (:worker_id::text IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND o.seq < :before ORDER BY o.seq DESC LIMIT :limit;
