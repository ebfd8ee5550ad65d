-- attempts_keep: keep attempts that did not complete their jobs.
-- params  now_at, seqs, epochs, numbers, workers, started_ats, reasons, errors
INSERT INTO {schema}.attempt (seq, epoch, number, worker_id, started_at, ended_at, reason, error)
SELECT x.seq, x.epoch, x.number, x.worker_id, x.started_at, :now_at, x.reason, x.error
  FROM unnest(:seqs::bigint[], :epochs::int[], :numbers::int[], :workers::text[], :started_ats::bigint[], :reasons::text[], :errors::text[])
    AS x (seq, epoch, number, worker_id, started_at, reason, error)
    ON CONFLICT (seq, epoch) DO UPDATE SET reason = excluded.reason, error = excluded.error, ended_at = excluded.ended_at;
