-- park_left: jobs have left a park: another is first now, or none is left and the park is forgotten.
-- params  namespace_id, park, class_id
WITH head AS (SELECT order_key, seq FROM {schema}.ready WHERE class_id = :class_id AND park = :park ORDER BY class_id, park, order_key, seq LIMIT 1),
moved AS (UPDATE {schema}.park p SET head_key = head.order_key, head_seq = head.seq FROM head
           WHERE p.namespace_id = :namespace_id AND p.park = :park AND p.class_id = :class_id)
DELETE FROM {schema}.park p WHERE p.namespace_id = :namespace_id AND p.park = :park AND p.class_id = :class_id AND NOT EXISTS (SELECT FROM head);
