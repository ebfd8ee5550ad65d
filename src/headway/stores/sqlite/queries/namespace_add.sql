-- namespace_add: make a namespace known.
-- params  name
INSERT INTO namespace (name) VALUES (:name) ON CONFLICT DO UPDATE SET name = excluded.name RETURNING namespace_id;
