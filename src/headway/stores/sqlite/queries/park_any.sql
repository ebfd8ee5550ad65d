-- park_any: whether anything is parked, and whether any park is open.
-- params  namespace_id
SELECT 1, (SELECT 1 FROM park WHERE namespace_id = :namespace_id AND open = 1) FROM park WHERE namespace_id = :namespace_id LIMIT 1;
