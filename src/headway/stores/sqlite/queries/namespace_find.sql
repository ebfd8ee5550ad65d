-- namespace_find: the number of a namespace.
-- params  name
SELECT namespace_id FROM namespace WHERE name = :name;
