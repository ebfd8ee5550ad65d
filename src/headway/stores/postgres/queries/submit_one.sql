-- submit_one: keep one plain job.
-- params  namespace_id, now_at, class_id, job_id, task, payload, timeout_ms, max_retries, retry, trace_id, limits
-- gives   whether that was done
SELECT {schema}.submit_one_{version}(:namespace_id, :now_at, :class_id, :job_id, :task, :payload, :timeout_ms, :max_retries, :retry, :trace_id, :limits);
