-- fair_class: let tenants share a class from now on; its clock begins at the first job that waits.
-- params  class_id, number
UPDATE class SET fair = 1,
       clock = ifnull((SELECT order_key FROM ready WHERE class_id = :class_id AND park = '' ORDER BY order_key LIMIT 1), :number)
 WHERE class_id = :class_id RETURNING clock;
