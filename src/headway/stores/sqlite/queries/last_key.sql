-- last_key: the highest key of a tenant's jobs that wait or run in a class.
-- params  class_id, tenant
SELECT max(order_key) FROM (
  SELECT max(order_key) AS order_key FROM ready WHERE class_id = :class_id AND tenant = :tenant
  UNION ALL SELECT max(order_key) FROM lease WHERE class_id = :class_id AND tenant = :tenant);
