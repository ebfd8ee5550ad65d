-- submit_job: keep what never changes about a job.
-- params  seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, submitted_at, expires_at, max_retries, timeout_ms, retry, idempotency_key, unique_key, limits, payload
INSERT INTO job (seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, submitted_at, expires_at,
                 max_retries, timeout_ms, retry, idempotency_key, unique_key, limits, payload)
VALUES (:seq, :job_id, :namespace_id, :class_id, :order_key, :due_at, :task, :tenant, :trace_id, :submitted_at, :expires_at,
        :max_retries, :timeout_ms, :retry, :idempotency_key, :unique_key, :limits, :payload);
