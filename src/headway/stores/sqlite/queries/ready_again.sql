-- ready_again: make a job eligible that ran or was delayed before.
-- params  class_id, order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, token, error, reason, tenant
INSERT INTO ready (class_id, park, order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, token, error, reason, tenant)
VALUES (:class_id, '', :order_key, :seq, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms, :token, :error, :reason, :tenant);
