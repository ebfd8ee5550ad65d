-- ready_again: make a job eligible that ran, ended or was delayed before, and note where it is.
-- params  class_id, order_key, seq, eligible_at, expires_at, unique_key, epoch, attempts, crashes, timeout_ms, token, error, reason, tenant
WITH placed AS (UPDATE {schema}.job SET class_id = :class_id, park = '', order_key = :order_key, due_at = NULL WHERE seq = :seq)
INSERT INTO {schema}.ready (class_id, order_key, seq, eligible_at, expires_at, unique_key, epoch, attempts, crashes, timeout_ms, token, error, reason, tenant)
VALUES (:class_id, :order_key, :seq, :eligible_at, :expires_at, :unique_key, :epoch, :attempts, :crashes, :timeout_ms, :token, :error, :reason, :tenant);
