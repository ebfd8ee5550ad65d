-- turn_days: make the tables of the next days, and drop those of old days that are empty.
-- params  now_at
SELECT {schema}.turn_days_{version}(:now_at);
