-- tables: whether a schema holds any tables, and whether they are ours.
-- params  schema
SELECT count(*) > 0 AS any, count(*) FILTER (WHERE tablename IN ('format', 'namespace', 'class', 'ready', 'lease')) = 5 AS ours
  FROM pg_catalog.pg_tables WHERE schemaname = :schema;
