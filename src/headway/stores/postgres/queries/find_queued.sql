-- find_queued: queued jobs, newest first. They have no worker.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.job j JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE :worker_id::text IS NULL
   AND (EXISTS (SELECT FROM {schema}.ready r WHERE r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key AND r.seq = j.seq)
        OR EXISTS (SELECT FROM {schema}.delayed d WHERE d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq))
-- use filters
   AND j.seq < :before ORDER BY j.seq DESC LIMIT :limit;
