-- heartbeat: register workers, renew their leases and read both.

-- part: lease
-- Leased jobs with all that their worker is told; held are the leases.
SELECT j.job_id, l.seq, l.token, j.task, CASE WHEN :payloads::boolean THEN j.payload ELSE ''::bytea END AS payload,
       c.lane, j.tenant, j.trace_id, l.epoch, l.attempts, l.crashes, j.max_retries,
       coalesce(l.timeout_ms, j.timeout_ms) AS timeout_ms, j.timeout_ms AS asked_timeout_ms, j.retry,
       l.started_at, l.cancel_at, c.needs, l.worker_id, c.rung, l.assigned, j.submitted_at, l.eligible_at,
       b.batch_id
  FROM held l JOIN {schema}.job j ON j.seq = l.seq JOIN {schema}.class c ON c.class_id = l.class_id
  LEFT JOIN {schema}.batch b ON b.seq = l.batch_seq

-- name: forget_worker
-- Forget a worker that has left and holds nothing.
-- params  worker_id, namespace_id
DELETE FROM {schema}.worker w WHERE w.worker_id = :worker_id AND w.namespace_id = :namespace_id AND w.state = 'dead'
   AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.worker_id = w.worker_id);

-- name: leases_by_job
-- The running jobs among these, with the rung each asked for and was given, and who holds it; locked.
-- params  namespace_id, job_ids
SELECT j.job_id, l.seq, c.rung, l.assigned, l.worker_id FROM {schema}.job j JOIN {schema}.lease l ON l.seq = j.seq
  JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE j.namespace_id = :namespace_id AND j.job_id = ANY (:job_ids::text[]) ORDER BY l.seq FOR UPDATE OF l;

-- name: leases_expired
-- The leases whose worker let its deadline pass, died, or was forgotten.
-- params  thorough, now_at, namespace_id, limit, payloads
-- plan    looks at leases only if there is such a worker and it holds any by its own count: to find that none is
--         overdue would mean to walk over the dead rows of all that have ended. Now and then it looks whatever the
--         count says (thorough). Leases come first and by themselves: without statistics the server would begin with
--         all jobs
WITH held AS MATERIALIZED (
  SELECT l.* FROM {schema}.lease l JOIN {schema}.class k ON k.class_id = l.class_id
    LEFT JOIN {schema}.worker w ON w.worker_id = l.worker_id
   WHERE (SELECT EXISTS (SELECT FROM {schema}.worker x WHERE x.lease_ends_at <= :now_at AND x.state <> 'dead'
                            OR (x.state = 'dead' OR x.lease_ends_at <= :now_at)
                               AND (x.running > 0 OR :thorough::boolean)))
     AND k.namespace_id = :namespace_id AND (w.worker_id IS NULL OR w.state = 'dead' OR w.lease_ends_at <= :now_at)
   ORDER BY l.seq LIMIT :limit)
-- use lease
 ORDER BY l.seq;

-- name: leases_of
-- The leases a worker holds.
-- params  worker_id, namespace_id, limit, payloads
-- plan    as leases_expired
WITH held AS MATERIALIZED (
  SELECT l.* FROM {schema}.lease l JOIN {schema}.class k ON k.class_id = l.class_id
   WHERE l.worker_id = :worker_id AND k.namespace_id = :namespace_id ORDER BY l.seq LIMIT :limit)
-- use lease
 ORDER BY l.seq;

-- name: register
-- Make a worker known, or known anew; its last claim stays, so that it may be repeated.
-- params  worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, now_at, lease_ends_at
INSERT INTO {schema}.worker (worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, state,
                             started_at, heartbeat_at, lease_ends_at)
VALUES (:worker_id, :namespace_id, :host, :pid, :slots, :reserved, :offers, :version, :protocol, 'active', :now_at,
        :now_at, :lease_ends_at)
    ON CONFLICT (worker_id) DO UPDATE SET namespace_id = excluded.namespace_id, host = excluded.host,
        pid = excluded.pid,
       slots = excluded.slots, reserved = excluded.reserved, offers = excluded.offers, version = excluded.version,
       protocol = excluded.protocol, state = excluded.state, started_at = excluded.started_at,
       heartbeat_at = excluded.heartbeat_at, lease_ends_at = excluded.lease_ends_at, waiting = NULL;

-- name: renew_held
-- What a renewal must know of the leases a worker holds; no payloads. The worker is locked, so they can be counted.
-- params  worker_id, namespace_id
WITH held AS (SELECT l.* FROM {schema}.lease l WHERE l.worker_id = :worker_id),
counted AS (UPDATE {schema}.worker w SET running = (SELECT count(*) FROM held)
             WHERE w.worker_id = :worker_id AND w.running <> (SELECT count(*) FROM held))
SELECT j.job_id, l.token, l.started_at, l.cancel_at, c.rung, l.assigned FROM held l JOIN {schema}.job j ON j.seq = l.seq
  JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE j.namespace_id = :namespace_id ORDER BY l.seq;

-- name: set_worker_state
-- Mark a worker draining or dead; it is woken no more.
-- params  state, worker_id, namespace_id
UPDATE {schema}.worker SET state = :state, waiting = NULL WHERE worker_id = :worker_id AND namespace_id = :namespace_id
   AND state <> 'dead' RETURNING 1;

-- name: worker_state
-- The state of a worker, which is locked until the end.
-- params  worker_id, namespace_id
SELECT state FROM {schema}.worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id FOR NO KEY UPDATE;

-- name: workers
-- All workers.
-- params  namespace_id
SELECT w.* FROM {schema}.worker w WHERE w.namespace_id = :namespace_id ORDER BY w.started_at, w.worker_id;
