-- schema_exists: whether there is a schema of this name.
-- params  schema
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = :schema);
