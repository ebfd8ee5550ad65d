-- table: one row for each job that has ended, for as long as its owner likes.
CREATE TABLE IF NOT EXISTS headway_history (
  namespace text NOT NULL,
  job_id text NOT NULL,
  task text NOT NULL,
  state text NOT NULL,
  lane text NOT NULL,
  tenant text,
  worker_id text,
  attempts integer NOT NULL,
  submitted_at timestamptz NOT NULL,
  eligible_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz NOT NULL,
  reason text,
  error_type text,
  error_message text,
  error_traceback text,
  trace_id text,
  idempotency_key text,
  unique_key text,
  payload json NOT NULL,  -- its arguments
  result json,
  attempt_log jsonb NOT NULL,
  PRIMARY KEY (namespace, job_id)
);
CREATE INDEX IF NOT EXISTS headway_history_finished ON headway_history USING brin (finished_at);
CREATE INDEX IF NOT EXISTS headway_history_task ON headway_history (namespace, task, finished_at);
