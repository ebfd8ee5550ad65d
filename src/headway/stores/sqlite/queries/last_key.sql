-- last_key: the highest key of a tenant's jobs that wait or run in a class; below 0 if it has none.
-- params  class_id, tenant
SELECT max(ifnull((SELECT order_key FROM ready WHERE class_id = :class_id AND tenant = :tenant ORDER BY order_key DESC LIMIT 1), -1),
           ifnull((SELECT order_key FROM lease WHERE class_id = :class_id AND tenant = :tenant ORDER BY order_key DESC LIMIT 1), -1));
