-- namespace_find: the number of a namespace.
-- params  name
SELECT namespace_id FROM {schema}.namespace WHERE name = :name;
