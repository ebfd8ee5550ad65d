-- submit_transient: put a transient job into its class's list.
-- params  class_id, seq, job_id, task, tenant, trace_id, timeout_ms, payload
INSERT INTO transient (class_id, seq, job_id, task, tenant, trace_id, timeout_ms, payload)
VALUES (:class_id, :seq, :job_id, :task, :tenant, :trace_id, :timeout_ms, :payload);
