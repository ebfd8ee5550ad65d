-- watch: note who wants to hear of every change, for a while; forget those who said so too long ago.
-- params  namespace_id, names, length_ms
WITH old AS (DELETE FROM {schema}.watcher WHERE until_at <= {schema}.raw_ms_{version}() - 3600000)
INSERT INTO {schema}.watcher (namespace_id, name, until_at)
SELECT :namespace_id, name, {schema}.raw_ms_{version}() + :length_ms FROM unnest(:names::text[]) name
    ON CONFLICT (namespace_id, name) DO UPDATE SET until_at = excluded.until_at;
