-- claim: lease waiting jobs to a worker.

-- part: waiting
-- A waiting job with all that a lease tells its worker. A member of a cancelled batch has expired at 0.
SELECT r.order_key, r.seq, r.eligible_at, r.epoch, r.attempts, r.crashes,
       ifnull(r.timeout_ms, j.timeout_ms) AS timeout_ms, j.job_id, j.task, j.payload, j.tenant, j.trace_id,
       j.max_retries, j.timeout_ms AS asked_timeout_ms, j.retry,
       CASE WHEN b.cancel_at IS NULL THEN j.expires_at ELSE 0 END AS expires_at, j.limits, r.tenant AS sharer,
       r.parked_at, j.submitted_at, b.batch_id, j.unique_key, j.batch_seq, j.awaited

-- name: blocked_first
-- The first jobs of the open blocked queues of a class, behind some place, each with the key of its queue.
-- params  class_id, order_key, seq, count
-- gives   rows in order
-- use waiting
     , p.park
  FROM park p INDEXED BY park_open
 CROSS JOIN ready r ON r.class_id = p.class_id AND r.park = p.park AND r.order_key = p.head_key AND r.seq = p.head_seq
 CROSS JOIN job j ON j.seq = r.seq LEFT JOIN batch b ON b.seq = j.batch_seq
 WHERE p.class_id = :class_id AND p.open = 1 AND (p.head_key, p.head_seq) > (:order_key, :seq)
 ORDER BY p.head_key, p.head_seq LIMIT :count;

-- name: blocked_next
-- The place of the next job of a blocked queue, behind some place.
-- params  class_id, blocked_by, order_key, seq
SELECT order_key, seq FROM ready
 WHERE class_id = :class_id AND park = :blocked_by AND (order_key, seq) > (:order_key, :seq)
 ORDER BY order_key, seq LIMIT 1;

-- name: claim_head
-- The line of a class from some place on, with all that a lease tells its worker.
-- params  class_id, blocked_by, order_key, seq, count
-- gives   rows in order
-- use waiting
  FROM ready r CROSS JOIN job j ON j.seq = r.seq LEFT JOIN batch b ON b.seq = j.batch_seq
 WHERE r.class_id = :class_id AND r.park = :blocked_by AND (r.order_key, r.seq) > (:order_key, :seq)
 ORDER BY r.order_key, r.seq LIMIT :count;

-- name: claim_front
-- Lease the front of a class, up to and with the last job taken, all on the same terms.
-- params  worker_id, token, started_at, class_id, order_key, seq, held, assigned
-- holds   one writer at a time, so what was read is still the front
INSERT INTO lease (seq, class_id, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms,
                   unique_key, order_key, tenant, held, assigned, batch_seq, awaited)
SELECT r.seq, r.class_id, :worker_id, :token, :started_at, r.eligible_at, r.epoch + 1, r.attempts + 1, r.crashes,
       ifnull(r.timeout_ms, j.timeout_ms), j.unique_key, r.order_key, r.tenant, :held, :assigned,
       j.batch_seq, j.awaited
  FROM ready r CROSS JOIN job j ON j.seq = r.seq
 WHERE r.class_id = :class_id AND r.park = '' AND (r.order_key, r.seq) <= (:order_key, :seq);

-- name: claim_lease
-- Lease a job on terms of its own: limits, an assigned rung, and what had blocked it.
-- params  seq, class_id, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms, unique_key,
--         order_key, tenant, held, assigned, blocked_for, blocked_ms, batch_seq, awaited
INSERT INTO lease (seq, class_id, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms,
                   unique_key, order_key, tenant, held, assigned, parked_for, parked_ms, batch_seq, awaited)
VALUES (:seq, :class_id, :worker_id, :token, :started_at, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms,
        :unique_key, :order_key, :tenant, :held, :assigned, :blocked_for, :blocked_ms, :batch_seq, :awaited);

-- name: claim_taken
-- Remove the front of a class or of a blocked queue that was leased.
-- params  class_id, blocked_by, order_key, seq
-- holds   one writer at a time, so what was read is still the front
DELETE FROM ready WHERE class_id = :class_id AND park = :blocked_by AND (order_key, seq) <= (:order_key, :seq);

-- name: claim_transient
-- Take transient jobs, but for those of paused tasks; nothing is kept of them.
-- params  class_id, paused, count
DELETE FROM transient WHERE class_id = :class_id AND seq IN
  (SELECT seq FROM transient WHERE class_id = :class_id AND task NOT IN (SELECT value FROM json_each(:paused))
    ORDER BY seq LIMIT :count)
RETURNING seq, job_id, task, payload, tenant, trace_id, timeout_ms;

-- name: claiming_worker
-- What a claim must know of its worker, and how many leases it holds.
-- params  worker_id, namespace_id
SELECT state, lease_ends_at, slots, claim_id, waiting, wait_lanes,
       (SELECT count(*) FROM lease l WHERE l.worker_id = w.worker_id) AS running
  FROM worker w WHERE w.worker_id = :worker_id AND w.namespace_id = :namespace_id;

-- name: classes_count
-- How many classes a namespace has.
-- params  namespace_id
SELECT count(*) FROM class WHERE namespace_id = :namespace_id;

-- name: delayed_due
-- The delayed jobs that have fallen due, earliest first.
-- params  namespace_id, now_at, limit
SELECT d.class_id, d.seq, j.task, j.tenant, j.expires_at, j.unique_key, d.epoch, d.attempts, d.crashes, d.timeout_ms,
       d.token, d.error, d.reason, d.due_at
  FROM delayed d CROSS JOIN job j ON j.seq = d.seq
 WHERE d.namespace_id = :namespace_id AND d.due_at <= :now_at ORDER BY d.due_at, d.seq LIMIT :limit;

-- name: delayed_taken
-- Remove the delayed jobs up to and with the last one that fell due.
-- params  namespace_id, due_at, seq
-- holds   one writer at a time, so what was read is still the front
DELETE FROM delayed WHERE namespace_id = :namespace_id AND (due_at, seq) <= (:due_at, :seq);

-- name: progress
-- Note how far a running job has come.
-- params  seq, token, progress, note
UPDATE lease SET progress = :progress, note = :note WHERE seq = :seq AND token = :token;

-- name: worker_claimed
-- Remember the last claim that gave a worker something; it no longer waits.
-- params  claim_id, worker_id
UPDATE worker SET claim_id = :claim_id, waiting = 0 WHERE worker_id = :worker_id;

-- name: worker_unwait
-- Note that a worker waits no longer.
-- params  worker_id
UPDATE worker SET waiting = 0 WHERE worker_id = :worker_id;

-- name: worker_wait
-- Note that a worker waits to be woken, and for jobs of which lanes.
-- params  wait_lanes, worker_id
UPDATE worker SET wait_lanes = :wait_lanes, waiting = (SELECT last + 1 FROM sequence) WHERE worker_id = :worker_id;

-- name: workers_waiting
-- The workers that wait, longest first.
-- params  namespace_id, now_at
SELECT worker_id, offers, wait_lanes FROM worker
 WHERE namespace_id = :namespace_id AND waiting > 0 AND state = 'active' AND lease_ends_at > :now_at
 ORDER BY waiting, worker_id;
