-- park_empty: forget a park in which nothing waits.
-- params  namespace_id, park, class_id
DELETE FROM park WHERE namespace_id = :namespace_id AND park = :park AND class_id = :class_id
   AND NOT EXISTS (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :park);
