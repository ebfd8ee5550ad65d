-- submit_within: keep one plain job in a caller's transaction.
-- params  namespace_id, now_at, class_id, job_id, task, payload, timeout_ms, max_retries, retry, trace_id, limits
-- gives   whether that was done
SELECT {schema}.submit_within_{version}(
  :namespace_id::int, :now_at::bigint, :class_id::int, :job_id::text, :task::text, :payload::bytea, :timeout_ms::bigint, :max_retries::int,
  :retry::text, :trace_id::text, :limits::text) AS done;
