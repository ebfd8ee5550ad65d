-- find_any: jobs in any state, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.job j JOIN {schema}.class c ON c.class_id = j.class_id
  LEFT JOIN {schema}.lease l ON l.seq = j.seq LEFT JOIN {schema}.outcome o ON o.seq = j.seq
 WHERE (:worker_id::text IS NULL OR coalesce(l.worker_id, o.worker_id) = :worker_id)
-- use filters
   AND j.seq < :before ORDER BY j.seq DESC LIMIT :limit;
