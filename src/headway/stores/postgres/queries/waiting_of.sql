-- waiting_of: a tenant's jobs that wait, by lane, and since when the foremost of them does.
-- params  tenant, namespace_id
SELECT c.lane, sum(w.waiting)::bigint AS waiting, min(w.oldest_at) AS oldest_at
  FROM {schema}.class c
  CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.tenant = :tenant) AS waiting,
           (SELECT r.eligible_at FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.tenant = :tenant
             ORDER BY r.order_key, r.seq LIMIT 1) AS oldest_at) w
 WHERE c.namespace_id = :namespace_id AND c.fair AND w.waiting > 0 GROUP BY c.lane;
