-- finish: end, cancel and retry jobs.

-- name: cancel_executing
-- Ask for a running job to be stopped; the first request stands.
-- params  now_at, seq
-- gives   the job, if it runs
UPDATE {schema}.lease SET cancel_at = coalesce(cancel_at, :now_at) WHERE seq = :seq RETURNING seq;

-- name: cancel_queued
-- Keep that a job was cancelled while it waited.
-- params  seq, state, finished_at, token, eligible_at, epoch, attempts, crashes, timeout_ms, reason, error
INSERT INTO {schema}.outcome (seq, state, finished_at, token, eligible_at, epoch, attempts, crashes, timeout_ms, reason,
                              error)
VALUES (:seq, :state, :finished_at, :token, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms, :reason, :error);

-- name: delayed_delete
-- Take jobs out of the delayed ones.
-- params  namespace_id, due_at, seq
-- gives   the job, if it was there
DELETE FROM {schema}.delayed WHERE namespace_id = :namespace_id AND due_at = :due_at AND seq = :seq RETURNING seq;

-- name: lease_to_requeue
-- What a job needs of its lease to go back where it was.
-- params  seq
SELECT l.class_id, l.epoch, l.eligible_at, j.task, j.tenant, j.expires_at, l.unique_key
  FROM {schema}.lease l JOIN {schema}.job j ON j.seq = l.seq WHERE l.seq = :seq;

-- name: lease_worker
-- The worker that holds a job, with its state and deadline if it is known.
-- params  seq, namespace_id
SELECT l.worker_id, w.state, w.lease_ends_at
  FROM {schema}.lease l LEFT JOIN {schema}.worker w ON w.worker_id = l.worker_id AND w.namespace_id = :namespace_id
 WHERE l.seq = :seq;

-- name: outcome_delete
-- Take back how a job ended.
-- params  seq
-- gives   the job, if it had ended
DELETE FROM {schema}.outcome WHERE seq = :seq RETURNING seq;

-- name: ready_delete
-- Take one job out of where it waits.
-- params  class_id, blocked_by, order_key, seq
-- gives   the job, if it was there
DELETE FROM {schema}.ready WHERE class_id = :class_id AND park = :blocked_by AND order_key = :order_key AND seq = :seq
RETURNING seq;

-- name: retry_job
-- A job that ended is back in the queue; it no longer expires.
-- params  seq
UPDATE {schema}.job SET expires_at = NULL WHERE seq = :seq;
