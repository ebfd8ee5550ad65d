-- finish_outcome: keep how a leased job ended; its lease tells the rest.
-- params  state, finished_at, attempts, crashes, timeout_ms, reason, error, result_error, result, seq
INSERT INTO outcome (seq, state, finished_at, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms,
                     cancel_at, progress, note, reason, error, result_error, result, parked_for, parked_ms)
SELECT seq, :state, :finished_at, worker_id, token, started_at, eligible_at, epoch, :attempts, :crashes, coalesce(nullif(:timeout_ms, 0), timeout_ms),
       cancel_at, progress, note, :reason, :error, :result_error, :result, parked_for, parked_ms
  FROM lease WHERE seq = :seq;
