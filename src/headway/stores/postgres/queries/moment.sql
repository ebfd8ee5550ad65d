-- moment: the moment, and of a namespace its number and the version of its rules; none while nobody has written there.
-- params  now_at, name
SELECT {schema}.now_ms_{version}(:now_at) AS now_at, n.namespace_id, n.rules
  FROM (SELECT) x LEFT JOIN {schema}.namespace n ON n.name = :name;
