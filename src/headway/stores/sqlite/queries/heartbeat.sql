-- heartbeat: register workers, renew their leases and read both.

-- part: lease
-- A leased job with all that its worker is told. A payload of another type shows that the row is damaged.
SELECT j.job_id, l.seq, l.token, j.task,
       CASE WHEN :payloads OR typeof(j.payload) <> 'blob' THEN j.payload ELSE x'' END AS payload, c.lane, j.tenant,
       j.trace_id, l.epoch, l.attempts, l.crashes, j.max_retries, l.timeout_ms,
       j.timeout_ms AS asked_timeout_ms, j.retry, l.started_at, l.cancel_at, c.needs,
       l.worker_id, c.rung, l.assigned, j.submitted_at, l.eligible_at, b.batch_id
  FROM lease l CROSS JOIN job j ON j.seq = l.seq JOIN class c ON c.class_id = l.class_id
  LEFT JOIN batch b ON b.seq = l.batch_seq

-- name: forget_worker
-- Forget a worker that has left and holds nothing.
-- params  worker_id, namespace_id
DELETE FROM worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id AND state = 'dead'
   AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.worker_id = worker.worker_id);

-- name: leases_by_job
-- The running jobs among these, with the rung each asked for and was given, and who holds it.
-- params  namespace_id, job_ids
SELECT j.job_id, l.seq, c.rung, l.assigned, l.worker_id FROM json_each(:job_ids) e
  JOIN job j ON j.job_id = e.value AND j.namespace_id = :namespace_id
  JOIN lease l ON l.seq = j.seq JOIN class c ON c.class_id = l.class_id;

-- name: leases_expired
-- The leases whose worker let its deadline pass, died, or was forgotten.
-- params  namespace_id, now_at, limit, payloads
-- use lease
  LEFT JOIN worker w ON w.worker_id = l.worker_id
 WHERE j.namespace_id = :namespace_id AND (w.worker_id IS NULL OR w.state = 'dead' OR w.lease_ends_at <= :now_at)
 ORDER BY l.seq LIMIT :limit;

-- name: leases_of
-- The leases a worker holds.
-- params  worker_id, namespace_id, limit, payloads
-- use lease
 WHERE l.worker_id = :worker_id AND j.namespace_id = :namespace_id ORDER BY l.seq LIMIT :limit;

-- name: register
-- Make a worker known, or known anew; its last claim stays, so that it may be repeated.
-- params  worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, now_at, lease_ends_at
INSERT INTO worker (worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, state,
                               started_at, heartbeat_at, lease_ends_at)
VALUES (:worker_id, :namespace_id, :host, :pid, :slots, :reserved, :offers, :version, :protocol, 'active',
        :now_at, :now_at, :lease_ends_at)
    ON CONFLICT DO UPDATE SET namespace_id = excluded.namespace_id, host = excluded.host, pid = excluded.pid,
       slots = excluded.slots, reserved = excluded.reserved, offers = excluded.offers, version = excluded.version,
       protocol = excluded.protocol, state = excluded.state, started_at = excluded.started_at,
       heartbeat_at = excluded.heartbeat_at, lease_ends_at = excluded.lease_ends_at, waiting = 0;

-- name: renew_held
-- What a renewal must know of the leases a worker holds; no payloads.
-- params  worker_id, namespace_id
SELECT j.job_id, l.token, l.started_at, l.cancel_at, c.rung, l.assigned
  FROM lease l JOIN job j ON j.seq = l.seq JOIN class c ON c.class_id = l.class_id
 WHERE l.worker_id = :worker_id AND j.namespace_id = :namespace_id ORDER BY l.seq;

-- name: set_worker_state
-- Mark a worker draining or dead; it is woken no more.
-- params  state, worker_id, namespace_id
UPDATE worker SET state = :state, waiting = 0 WHERE worker_id = :worker_id AND namespace_id = :namespace_id
   AND state <> 'dead' RETURNING 1;

-- name: worker_state
-- The state of a worker.
-- params  worker_id, namespace_id
SELECT state FROM worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id;

-- name: workers
-- All workers, with the leases each holds.
-- params  namespace_id
SELECT w.*, (SELECT count(*) FROM lease l WHERE l.worker_id = w.worker_id) AS running
  FROM worker w WHERE w.namespace_id = :namespace_id ORDER BY w.started_at, w.worker_id;

-- name: lease_set_rung
-- Give a running job another rung.
-- params  assigned, seq
UPDATE lease SET assigned = :assigned WHERE seq = :seq;
