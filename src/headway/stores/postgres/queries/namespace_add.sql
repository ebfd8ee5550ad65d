-- namespace_add: make a namespace known.
-- params  name, channel
INSERT INTO {schema}.namespace (name, channel) VALUES (:name, :channel) ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING namespace_id;
