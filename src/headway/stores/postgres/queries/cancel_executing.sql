-- cancel_executing: ask for running jobs to be stopped; the first request stands.
-- params  now_at, seqs
-- gives   the jobs that do run
UPDATE {schema}.lease SET cancel_at = coalesce(cancel_at, :now_at) WHERE seq = ANY (:seqs::bigint[]) RETURNING seq;
