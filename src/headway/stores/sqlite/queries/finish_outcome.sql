-- finish_outcome: keep how a job ended.
-- params  seq, state, finished_at, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms, cancel_at, progress, note, reason, error, result_error, result, parked_for, parked_ms
INSERT INTO outcome (seq, state, finished_at, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms,
                     cancel_at, progress, note, reason, error, result_error, result, parked_for, parked_ms)
VALUES (:seq, :state, :finished_at, :worker_id, :token, :started_at, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms,
        :cancel_at, :progress, :note, :reason, :error, :result_error, :result, :parked_for, :parked_ms);
