-- add: jobs that have ended; one that ended before, and was retried, is replaced.
-- params  namespace, an array for each column
-- holds   an ending is never replaced by an earlier one, should an archiver come late with it
INSERT INTO headway_history (
  namespace,
  job_id, seq, task, state, lane, rung, needs, limits, tenant, worker_id, attempts, crashes, epoch, max_retries,
  timeout_ms, retry, submitted_at, eligible_at, started_at, finished_at, expires_at, cancel_requested_at, parked_for,
  parked_ms, progress, note, reason, error_type, error_message, error_traceback, error_retriable, result_error,
  trace_id, idempotency_key, unique_key, payload, result, attempt_log
)
SELECT $1,
  job_id, seq, task, state, lane, rung,
  ARRAY(SELECT json_array_elements_text(needs)), ARRAY(SELECT json_array_elements_text(limits)),
  tenant, worker_id, attempts, crashes, epoch, max_retries, timeout_ms, retry, submitted_at, eligible_at, started_at,
  finished_at, expires_at, cancel_requested_at, parked_for, parked_ms, progress, note, reason, error_type,
  error_message, error_traceback, error_retriable, result_error, trace_id, idempotency_key, unique_key, payload,
  result, attempt_log
FROM unnest(
  $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::json[], $9::json[], $10::text[],
  $11::text[], $12::integer[], $13::integer[], $14::bigint[], $15::integer[], $16::bigint[], $17::jsonb[],
  $18::timestamptz[], $19::timestamptz[], $20::timestamptz[], $21::timestamptz[], $22::timestamptz[],
  $23::timestamptz[], $24::text[], $25::bigint[], $26::double precision[], $27::text[], $28::text[], $29::text[],
  $30::text[], $31::text[], $32::boolean[], $33::text[], $34::text[], $35::text[], $36::text[], $37::json[],
  $38::json[], $39::jsonb[]
) AS job (
  job_id, seq, task, state, lane, rung, needs, limits, tenant, worker_id, attempts, crashes, epoch, max_retries,
  timeout_ms, retry, submitted_at, eligible_at, started_at, finished_at, expires_at, cancel_requested_at, parked_for,
  parked_ms, progress, note, reason, error_type, error_message, error_traceback, error_retriable, result_error,
  trace_id, idempotency_key, unique_key, payload, result, attempt_log
)
ON CONFLICT (namespace, job_id) DO UPDATE SET (
  seq, task, state, lane, rung, needs, limits, tenant, worker_id, attempts, crashes, epoch, max_retries, timeout_ms,
  retry, submitted_at, eligible_at, started_at, finished_at, expires_at, cancel_requested_at, parked_for, parked_ms,
  progress, note, reason, error_type, error_message, error_traceback, error_retriable, result_error, trace_id,
  idempotency_key, unique_key, payload, result, attempt_log
) = ROW (
  excluded.seq, excluded.task, excluded.state, excluded.lane, excluded.rung, excluded.needs, excluded.limits,
  excluded.tenant, excluded.worker_id, excluded.attempts, excluded.crashes, excluded.epoch, excluded.max_retries,
  excluded.timeout_ms, excluded.retry, excluded.submitted_at, excluded.eligible_at, excluded.started_at,
  excluded.finished_at, excluded.expires_at, excluded.cancel_requested_at, excluded.parked_for, excluded.parked_ms,
  excluded.progress, excluded.note, excluded.reason, excluded.error_type, excluded.error_message,
  excluded.error_traceback, excluded.error_retriable, excluded.result_error, excluded.trace_id,
  excluded.idempotency_key, excluded.unique_key, excluded.payload, excluded.result, excluded.attempt_log
)
WHERE headway_history.finished_at <= excluded.finished_at
