-- claim: lease waiting jobs to a worker.

-- name: claim_head
-- The line of a class from some place on, with all that a lease tells its worker.
-- params  class_id, blocked_by, order_key, seq, count
-- gives   rows in order
SELECT r.order_key, r.seq, r.eligible_at, r.epoch, r.attempts, r.crashes,
       coalesce(r.timeout_ms, j.timeout_ms) AS timeout_ms, j.job_id, j.task, j.payload, j.tenant, j.trace_id,
       j.max_retries, j.timeout_ms AS asked_timeout_ms, j.retry, r.expires_at, j.limits, r.tenant AS sharer,
       r.parked_at, j.submitted_at, r.ctid::text AS spot
  FROM {schema}.ready r JOIN {schema}.job j ON j.seq = r.seq
 WHERE r.class_id = :class_id AND r.park = :blocked_by AND (r.order_key, r.seq) > (:order_key, :seq)
 ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT :count FOR UPDATE OF r SKIP LOCKED;

-- name: claim_leases
-- Lease jobs of one class and remove them from where they wait.
-- params  worker_id, token, now_at, spots, seqs, held, assigned, blocked_for, blocked_ms
-- holds   their rows in ready are locked by claim_head, so that they are still where it found them
WITH c AS (DELETE FROM {schema}.ready WHERE ctid = ANY (:spots::text[]::tid[]) RETURNING *)
INSERT INTO {schema}.lease (seq, order_key, started_at, eligible_at, timeout_ms, parked_ms, class_id, epoch, attempts,
                            crashes, token, worker_id, tenant, unique_key, held, assigned, parked_for)
SELECT c.seq, c.order_key, :now_at, c.eligible_at, c.timeout_ms, x.parked_ms, c.class_id, c.epoch + 1, c.attempts + 1,
       c.crashes, :token, :worker_id, c.tenant, c.unique_key, x.held, x.assigned, x.parked_for
  FROM c JOIN unnest(:seqs::bigint[], :held::text[], :assigned::text[], :blocked_for::text[], :blocked_ms::bigint[])
              AS x (seq, held, assigned, parked_for, parked_ms) ON x.seq = c.seq;

-- name: claim_transient
-- Take transient jobs, but for those of paused tasks; nothing is kept of them.
-- params  class_id, paused, count
DELETE FROM {schema}.transient WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {schema}.transient WHERE class_id = :class_id AND task <> ALL (:paused::text[])
   ORDER BY class_id, seq LIMIT :count FOR UPDATE SKIP LOCKED))
RETURNING seq, job_id, task, payload, tenant, trace_id, timeout_ms;

-- name: claiming_worker
-- What a claim must know of its worker, which is locked until the end.
-- params  worker_id, namespace_id
SELECT state, lease_ends_at, slots, claim_id, waiting IS NOT NULL AS waiting, wait_lanes, running
  FROM {schema}.worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id FOR NO KEY UPDATE;

-- name: delayed_due
-- Take out the delayed jobs that have fallen due, earliest first.
-- params  namespace_id, now_at, limit
WITH d AS (
  DELETE FROM {schema}.delayed WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.delayed WHERE namespace_id = :namespace_id AND due_at <= :now_at
     ORDER BY namespace_id, due_at, seq LIMIT :limit FOR UPDATE SKIP LOCKED))
  RETURNING *)
SELECT d.class_id, d.seq, j.task, j.tenant, j.expires_at, j.unique_key, d.epoch, d.attempts, d.crashes, d.timeout_ms,
       d.token, d.error, d.reason
  FROM d JOIN {schema}.job j ON j.seq = d.seq ORDER BY d.due_at, d.seq;

-- name: exchange
-- End leases, note progress, claim and read a snapshot of what waits, in one step.
-- params  namespace_id, now_at, rules, asker, spot, claim, f_ids, f_seqs, f_tokens, f_states, f_results, f_attempts,
--         f_crashes, f_timeouts, f_problems, f_errors, f_reasons, p_ids, p_seqs, p_tokens, p_fractions, p_notes,
--         claims, free, free_below, leave_free, classes, t_class, t_most, t_below, t_until, t_label, t_floor,
--         t_rewound, look, waits, lanes, pictured, bound, passed_max
SELECT * FROM {schema}.exchange_{version}(
  :namespace_id, :now_at, :rules, :asker, :spot, :claim, :f_ids, :f_seqs, :f_tokens, :f_states, :f_results, :f_attempts,
  :f_crashes, :f_timeouts, :f_problems, :f_errors, :f_reasons, :p_ids, :p_seqs, :p_tokens, :p_fractions, :p_notes,
  :claims, :free, :free_below, :leave_free, :classes, :t_class, :t_most, :t_below, :t_until, :t_label, :t_floor,
  :t_rewound, :look, :waits, :lanes, :pictured, :bound, :passed_max);

-- name: lock_waiters
-- Wait for all who have looked for waiting workers to commit, and keep others from looking until the end.
-- params  namespace_id
SELECT pg_advisory_xact_lock({gate}, :namespace_id::int);

-- name: progress
-- Note how far running jobs have come.
-- params  seqs, tokens, fractions, notes
UPDATE {schema}.lease l SET progress = p.fraction, note = p.note
  FROM unnest(:seqs::bigint[], :tokens::bytea[], :fractions::double precision[], :notes::text[])
       p (seq, token, fraction, note)
 WHERE l.seq = p.seq AND l.token = p.token;

-- name: worker_claimed
-- Remember the last claim that gave a worker something; it no longer waits.
-- params  claim_id, count, worker_id
UPDATE {schema}.worker SET claim_id = :claim_id, waiting = NULL, running = running + :count
 WHERE worker_id = :worker_id;

-- name: worker_unwait
-- Note that a worker waits no longer.
-- params  worker_id
UPDATE {schema}.worker SET waiting = NULL WHERE worker_id = :worker_id;

-- name: worker_wait
-- Note that a worker waits to be woken, and for jobs of which lanes.
-- params  wait_lanes, worker_id
UPDATE {schema}.worker SET wait_lanes = :wait_lanes, waiting = nextval('{schema}.turn') WHERE worker_id = :worker_id;
