-- outcomes_keep: keep how jobs ended.
-- params  now_at, seqs, states, workers, tokens, started_ats, eligible_ats, epochs, attempts, crashes, timeouts, cancel_ats, progress, notes, reasons, errors, problems, results, parked_for, parked_ms
INSERT INTO {schema}.outcome (finished_at, seq, state, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms, cancel_at,
                              progress, note, reason, error, result_error, result, parked_for, parked_ms)
SELECT :now_at, x.* FROM unnest(
  :seqs::bigint[], :states::text[], :workers::text[], :tokens::bytea[], :started_ats::bigint[], :eligible_ats::bigint[], :epochs::int[],
  :attempts::int[], :crashes::int[], :timeouts::bigint[], :cancel_ats::bigint[], :progress::double precision[], :notes::text[], :reasons::text[],
  :errors::text[], :problems::text[], :results::bytea[], :parked_for::text[], :parked_ms::bigint[]) x;
