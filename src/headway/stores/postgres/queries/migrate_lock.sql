-- migrate_lock: let one process at a time change a schema.
-- params  number
SELECT pg_advisory_xact_lock(:number::bigint);
