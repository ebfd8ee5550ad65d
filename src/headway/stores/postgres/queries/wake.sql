-- wake: wake a waiting worker for each job that became eligible.
-- params  namespace_id, now_at, classes, but
SELECT {schema}.wake_{version}(:namespace_id, :now_at, :classes, :but);
