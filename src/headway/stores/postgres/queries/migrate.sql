-- migrate: see what a database holds before and after a migration.

-- name: format_read
-- Which versions a schema is of.
-- params  none
SELECT name, value FROM {schema}.format;

-- name: format_write
-- Note one of them.
-- params  name, value
INSERT INTO {schema}.format (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: functions_exist
-- Whether a schema has the functions of this release.
-- params  schema
SELECT EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
                WHERE n.nspname = :schema AND p.proname = 'exchange_{version}');

-- name: migrate_lock
-- Let one process at a time change a schema.
-- params  number
SELECT pg_advisory_xact_lock(:number::bigint);

-- name: schema_exists
-- Whether there is a schema of this name.
-- params  schema
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = :schema);

-- name: tables
-- Whether a schema holds any tables, and whether they are ours.
-- params  schema
SELECT count(*) > 0 AS any,
       count(*) FILTER (WHERE tablename IN ('format', 'namespace', 'class', 'ready', 'lease')) = 5 AS ours
  FROM pg_catalog.pg_tables WHERE schemaname = :schema;
