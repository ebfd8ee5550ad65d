-- park_head: note which job of a park is now the first.
-- params  class_id, park, namespace_id
UPDATE park SET (head_key, head_seq) =
       (SELECT order_key, seq FROM ready WHERE class_id = :class_id AND park = :park ORDER BY order_key, seq LIMIT 1)
 WHERE namespace_id = :namespace_id AND park = :park AND class_id = :class_id
   AND EXISTS (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :park);
