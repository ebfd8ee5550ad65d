-- cancel_queued: keep that a job was cancelled while it waited.
-- params  seq, state, finished_at, token, eligible_at, epoch, attempts, crashes, timeout_ms, reason, error
INSERT INTO outcome (seq, state, finished_at, token, eligible_at, epoch, attempts, crashes, timeout_ms, reason, error)
VALUES (:seq, :state, :finished_at, :token, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms, :reason, :error);
