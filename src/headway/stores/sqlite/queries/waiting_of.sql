-- waiting_of: a tenant's jobs that wait, by lane, and since when the foremost of them does.
-- params  tenant, namespace_id
SELECT c.lane,
       sum((SELECT count(*) FROM ready r WHERE r.class_id = c.class_id AND r.tenant = :tenant)) AS waiting,
       min((SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id AND r.tenant = :tenant
             ORDER BY r.order_key, r.seq LIMIT 1)) AS oldest_at
  FROM class c WHERE c.namespace_id = :namespace_id AND c.fair = 1 GROUP BY c.lane HAVING waiting > 0;
