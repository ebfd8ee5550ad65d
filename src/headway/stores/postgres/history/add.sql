-- add: jobs that have ended; one that ended before, and was retried, is replaced.
-- params  namespace, an array for each column
INSERT INTO headway_history
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
  $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::text[], $15::text[],
  $16::text[], $17::text[], $18::text[], $19::text[], $20::json[], $21::json[], $22::jsonb[])
ON CONFLICT (namespace, job_id) DO UPDATE SET
  state = excluded.state, worker_id = excluded.worker_id, attempts = excluded.attempts,
  eligible_at = excluded.eligible_at, started_at = excluded.started_at, finished_at = excluded.finished_at,
  reason = excluded.reason, error_type = excluded.error_type, error_message = excluded.error_message,
  error_traceback = excluded.error_traceback, result = excluded.result, attempt_log = excluded.attempt_log
