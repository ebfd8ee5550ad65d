-- delay: hold a job back until it is due.
-- params  namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason
INSERT INTO delayed (namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason)
VALUES (:namespace_id, :due_at, :seq, :class_id, :epoch, :attempts, :crashes, :timeout_ms, :token, :error, :reason);
