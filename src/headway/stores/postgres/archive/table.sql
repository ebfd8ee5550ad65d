-- table: one row for each job that has ended, for as long as its owner likes.
CREATE TABLE IF NOT EXISTS headway_history (
  namespace text NOT NULL,
  job_id text NOT NULL,
  seq bigint NOT NULL,  -- grows with each submit; lists go by it
  task text NOT NULL,
  state text NOT NULL,
  lane text NOT NULL,
  rung text,
  needs text[] NOT NULL,
  limits text[] NOT NULL,
  tenant text,
  worker_id text,  -- of the last attempt
  attempts integer NOT NULL,
  crashes integer NOT NULL,
  epoch bigint NOT NULL,
  max_retries integer NOT NULL,
  timeout_ms bigint NOT NULL,
  retry jsonb,
  submitted_at timestamptz NOT NULL,
  eligible_at timestamptz,
  started_at timestamptz,
  finished_at timestamptz NOT NULL,
  expires_at timestamptz,
  cancel_requested_at timestamptz,
  parked_for text,
  parked_ms bigint NOT NULL,
  progress double precision,
  note text,
  reason text,
  error_type text,
  error_message text,
  error_traceback text,
  error_retriable boolean,
  result_error text,
  trace_id text,
  idempotency_key text,
  unique_key text,
  payload json NOT NULL,  -- its arguments
  result json,
  attempt_log jsonb NOT NULL,
  PRIMARY KEY (namespace, job_id)
);
CREATE INDEX IF NOT EXISTS headway_history_finished ON headway_history USING brin (finished_at);
-- For lists, newest first.
CREATE INDEX IF NOT EXISTS headway_history_seq ON headway_history (namespace, seq);
CREATE INDEX IF NOT EXISTS headway_history_task ON headway_history (namespace, task, seq);
CREATE INDEX IF NOT EXISTS headway_history_worker ON headway_history (namespace, worker_id, seq);
CREATE INDEX IF NOT EXISTS headway_history_tenant ON headway_history (namespace, tenant, seq) WHERE tenant IS NOT NULL;
CREATE INDEX IF NOT EXISTS headway_history_bad ON headway_history (namespace, seq) WHERE state <> 'completed';
