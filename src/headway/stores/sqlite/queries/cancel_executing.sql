-- cancel_executing: ask for a running job to be stopped; the first request stands.
-- params  now_at, seq
UPDATE lease SET cancel_at = :now_at WHERE seq = :seq AND cancel_at IS NULL;
