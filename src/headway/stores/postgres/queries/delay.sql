-- delay: hold a job back until it is due, and note where it is.
-- params  namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason
WITH placed AS (UPDATE {schema}.job SET class_id = :class_id, park = '', order_key = NULL, due_at = :due_at WHERE seq = :seq)
INSERT INTO {schema}.delayed (namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason)
VALUES (:namespace_id, :due_at, :seq, :class_id, :epoch, :attempts, :crashes, :timeout_ms, :token, :error, :reason);
