-- last_key: the highest key of a tenant's jobs that wait or run in a class.
-- params  class_id, tenant
SELECT {schema}.last_key_{version}(:class_id, :tenant);
