-- park_any: whether anything is parked here, and whether any park is open; those of other namespaces cost a look, no more.
-- params  namespace_id
SELECT 1, (SELECT 1 FROM park INDEXED BY park_open WHERE open = 1 LIMIT 1) FROM park WHERE namespace_id = :namespace_id LIMIT 1;
