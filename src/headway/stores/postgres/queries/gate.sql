-- gate: wait for all who have looked for waiting workers to commit, and keep others from looking until the end.
-- params  namespace_id
SELECT pg_advisory_xact_lock({gate}, :namespace_id::int);
