-- format_write: note one of them.
-- params  name, value
INSERT INTO {schema}.format (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value;
