-- ring: wake one ear once this is durable.
-- params  namespace_id, kind, name
SELECT {schema}.ring_{version}(:namespace_id, :kind, :name);
