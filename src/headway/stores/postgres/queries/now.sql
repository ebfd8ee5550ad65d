-- now: the moment.
-- params  now_at
SELECT {schema}.now_ms_{version}(:now_at);
