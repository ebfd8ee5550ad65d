-- turn_days: make the tables of the next days, and drop those of old days whose jobs are all forgotten.
-- params  now_at
SELECT {schema}.turn_days_{version}(:now_at);
