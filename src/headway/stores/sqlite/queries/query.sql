-- query: read jobs, the snapshot and the statistics.

-- part: filters
-- What find's callers may ask of a job; j is the job, c its class.
   AND j.namespace_id = :namespace_id
   AND (:task IS NULL OR j.task = :task)
   AND (:lane IS NULL OR c.lane = :lane)
   AND (:tenant IS NULL OR j.tenant = :tenant)
   AND (:submitted_before_at IS NULL OR j.submitted_at < :submitted_before_at)
   AND (:submitted_after_at IS NULL OR j.submitted_at >= :submitted_after_at)

-- part: job
-- Everything about a job, wherever it is.
SELECT j.job_id, j.seq, j.task, j.payload, c.lane, c.needs, c.rung, j.tenant, j.max_retries,
       j.timeout_ms AS asked_timeout_ms, j.retry, j.submitted_at, j.expires_at, j.idempotency_key, j.unique_key,
       j.trace_id, j.class_id, j.order_key, d.due_at,
       CASE WHEN l.seq IS NOT NULL THEN 'executing' WHEN o.seq IS NOT NULL THEN o.state ELSE 'queued' END AS state,
       coalesce(l.eligible_at, o.eligible_at, r.eligible_at) AS eligible_at,
       coalesce(l.epoch, o.epoch, r.epoch, d.epoch, 0) AS epoch,
       coalesce(l.attempts, o.attempts, r.attempts, d.attempts, 0) AS attempts,
       coalesce(l.crashes, o.crashes, r.crashes, d.crashes, 0) AS crashes,
       coalesce(l.timeout_ms, o.timeout_ms, r.timeout_ms, d.timeout_ms, j.timeout_ms) AS timeout_ms,
       coalesce(l.started_at, o.started_at) AS started_at, o.finished_at,
       coalesce(l.cancel_at, o.cancel_at) AS cancel_at, coalesce(l.worker_id, o.worker_id) AS worker_id,
       coalesce(l.progress, o.progress) AS progress, coalesce(l.note, o.note) AS note,
       coalesce(o.error, r.error, d.error) AS error, coalesce(o.reason, r.reason, d.reason) AS reason, o.result_error,
       o.result, coalesce(o.token, r.token, d.token) AS token, j.limits, r.park, l.assigned,
       coalesce(l.parked_for, o.parked_for) AS parked_for, coalesce(l.parked_ms, o.parked_ms, 0) AS parked_ms,
       j.batch_seq, j.awaited, b.batch_id
  FROM job j JOIN class c ON c.class_id = j.class_id
  LEFT JOIN lease l ON l.seq = j.seq
  LEFT JOIN outcome o ON o.seq = j.seq
  LEFT JOIN ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key AND r.seq = j.seq
  LEFT JOIN delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
  LEFT JOIN batch b ON b.seq = j.batch_seq

-- name: blocked_queues
-- The blocked queues by counter and lane: how many jobs wait there, up to a bound, and when the first one opens.
-- params  namespace_id, limit, bound, now_at
SELECT p.park, c.lane, sum((SELECT count(*) FROM (SELECT 1 FROM ready r WHERE r.class_id = p.class_id
                                                     AND r.park = p.park LIMIT :bound))) AS waiting,
       min(CASE WHEN p.open_at > :now_at THEN p.open_at END) AS open_at
  FROM (SELECT DISTINCT park FROM park WHERE namespace_id = :namespace_id ORDER BY park LIMIT :limit) counted
  JOIN park p ON p.namespace_id = :namespace_id AND p.park = counted.park
  JOIN class c ON c.class_id = p.class_id
 GROUP BY p.park, c.lane;

-- name: find_any
-- Jobs in any state, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM job j CROSS JOIN class c ON c.class_id = j.class_id
  LEFT JOIN lease l ON l.seq = j.seq LEFT JOIN outcome o ON o.seq = j.seq
 WHERE (:worker_id IS NULL OR coalesce(l.worker_id, o.worker_id) = :worker_id)
-- use filters
   AND j.seq < :before ORDER BY j.seq DESC LIMIT :limit;

-- name: find_bad
-- Jobs that ended in one of the other states, newest first.
-- params  state, worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM outcome o CROSS JOIN job j ON j.seq = o.seq JOIN class c ON c.class_id = j.class_id
 WHERE o.state = :state AND o.state <> 'completed' AND (:worker_id IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND o.seq < :before ORDER BY o.seq DESC LIMIT :limit;

-- name: find_completed
-- Completed jobs, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM outcome o CROSS JOIN job j ON j.seq = o.seq JOIN class c ON c.class_id = j.class_id
 WHERE o.state = 'completed' AND (:worker_id IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND o.seq < :before ORDER BY o.seq DESC LIMIT :limit;

-- name: find_ended
-- Jobs that ended in one of the other states, those that ended last first.
-- params  state, worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, ended_at,
--         ended_seq, limit
SELECT j.seq, o.finished_at FROM outcome o CROSS JOIN job j ON j.seq = o.seq JOIN class c ON c.class_id = j.class_id
 WHERE o.state = :state AND o.state <> 'completed' AND (:worker_id IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND (o.finished_at, o.seq) < (:ended_at, :ended_seq) ORDER BY o.finished_at DESC, o.seq DESC LIMIT :limit;

-- name: find_executing
-- Executing jobs, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM lease l CROSS JOIN job j ON j.seq = l.seq JOIN class c ON c.class_id = j.class_id
 WHERE (:worker_id IS NULL OR l.worker_id = :worker_id)
-- use filters
   AND l.seq < :before ORDER BY l.seq DESC LIMIT :limit;

-- name: find_queued
-- Queued jobs, newest first. They have no worker.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM (SELECT r.seq FROM ready r UNION ALL SELECT d.seq FROM delayed d) q
  CROSS JOIN job j ON j.seq = q.seq JOIN class c ON c.class_id = j.class_id
 WHERE :worker_id IS NULL
-- use filters
   AND q.seq < :before ORDER BY q.seq DESC LIMIT :limit;

-- name: get
-- Everything about these jobs.
-- params  job_ids, namespace_id
-- use job
 WHERE j.job_id IN (SELECT value FROM json_each(:job_ids)) AND j.namespace_id = :namespace_id;

-- name: get_by_seq
-- Everything about the jobs of these numbers.
-- params  seqs
-- use job
 WHERE j.seq IN (SELECT value FROM json_each(:seqs));

-- name: history
-- The attempts of these jobs that did not complete them.
-- params  seqs
SELECT seq, number, epoch, worker_id, started_at, ended_at, reason, error FROM attempt
 WHERE seq IN (SELECT value FROM json_each(:seqs)) ORDER BY seq, epoch;

-- name: ids_by_seq
-- The ids of the jobs of these numbers.
-- params  seqs
SELECT seq, job_id FROM job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: match_words
-- The jobs with all of these words in their arguments, and those with letters beyond ASCII, whose case is unknown here.
-- params  job_ids, namespace_id, words
SELECT j.job_id FROM job j
 WHERE j.job_id IN (SELECT value FROM json_each(:job_ids)) AND j.namespace_id = :namespace_id
   AND (length(CAST(j.payload AS TEXT)) <> length(CAST(j.payload AS BLOB))
        OR NOT EXISTS (SELECT 1 FROM json_each(:words) w
                        WHERE instr(lower(CAST(j.payload AS TEXT)), w.value) = 0));

-- name: next_due
-- When the next delayed job falls due, or the next blocked queue opens. Held jobs are never due.
-- params  namespace_id, now_at, held_at
SELECT min(at) FROM (
  SELECT (SELECT due_at FROM delayed WHERE namespace_id = :namespace_id AND due_at < :held_at
           ORDER BY due_at LIMIT 1) AS at
  UNION ALL SELECT (SELECT open_at FROM park WHERE namespace_id = :namespace_id AND open_at > :now_at
                     ORDER BY open_at LIMIT 1));

-- name: snapshot_classes
-- Each class with how many wait, counted up to a bound, since when the longest, and its first one's key.
-- params  bound, now_at, namespace_id
SELECT c.lane, c.rung, c.needs, c.persist, c.fair,
       CASE c.persist WHEN 1 THEN (SELECT count(*) FROM (SELECT 1 FROM ready r
                                                          WHERE r.class_id = c.class_id AND r.park = '' LIMIT :bound))
                      ELSE (SELECT count(*) FROM (SELECT 1 FROM transient t
                                                   WHERE t.class_id = c.class_id LIMIT :bound)) END AS waiting,
       CASE c.fair WHEN 1 THEN (SELECT r.eligible_at FROM ready r
                                 WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                                 ORDER BY r.eligible_at LIMIT 1)
                   ELSE (SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id AND r.park = ''
                          ORDER BY r.order_key, r.seq LIMIT 1)
       END AS oldest_at,
       CASE c.persist WHEN 1 THEN (SELECT r.order_key FROM ready r WHERE r.class_id = c.class_id AND r.park = ''
                                    ORDER BY r.order_key LIMIT 1)
                      ELSE (SELECT t.seq FROM transient t WHERE t.class_id = c.class_id
                             ORDER BY t.seq LIMIT 1) END AS head_key,
       (SELECT count(*) FROM park p WHERE p.class_id = c.class_id AND p.open = 1)
         + (SELECT count(*) FROM park p WHERE p.namespace_id = c.namespace_id AND p.open_at <= :now_at
               AND p.class_id = c.class_id) AS open_queues,
       (SELECT p.head_key FROM park p WHERE p.class_id = c.class_id AND p.open = 1
         ORDER BY p.head_key, p.head_seq LIMIT 1) AS blocked_key,
       (SELECT min(p.head_key) FROM park p WHERE p.namespace_id = c.namespace_id AND p.open_at <= :now_at
           AND p.class_id = c.class_id)
         AS due_key
  FROM class c WHERE c.namespace_id = :namespace_id ORDER BY c.lane, c.needs, c.rung, c.persist;

-- name: stats_kept
-- The jobs that ended badly and are still kept.
-- params  namespace_id
SELECT o.state, count(*) FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.state <> 'completed' AND j.namespace_id = :namespace_id GROUP BY o.state;

-- name: stats_lanes
-- Each lane in numbers.
-- params  namespace_id, held_at
SELECT c.lane,
       sum((SELECT count(*) FROM ready r WHERE r.class_id = c.class_id))
         + sum((SELECT count(*) FROM transient t WHERE t.class_id = c.class_id)) AS waiting,
       min(CASE c.fair WHEN 1 THEN (SELECT r.eligible_at FROM ready r
                                     WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                                     ORDER BY r.eligible_at LIMIT 1)
                       ELSE (SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id AND r.park = ''
                              ORDER BY r.order_key, r.seq LIMIT 1)
           END) AS oldest_at,
       sum((SELECT count(*) FROM delayed d WHERE d.namespace_id = c.namespace_id AND d.due_at < :held_at
               AND d.class_id = c.class_id)) AS delayed,
       sum((SELECT count(*) FROM lease l WHERE l.class_id = c.class_id)) AS executing,
       sum((SELECT count(*) FROM delayed d WHERE d.namespace_id = c.namespace_id AND d.due_at = :held_at
               AND d.class_id = c.class_id)) AS held
  FROM class c WHERE c.namespace_id = :namespace_id GROUP BY c.lane;

-- name: stats_tally
-- The totals, all minutes together and the recent ones by themselves.
-- params  namespace_id, since
SELECT what, sum(count) AS total, sum(CASE WHEN minute >= :since THEN count ELSE 0 END) AS recent
  FROM tally WHERE namespace_id = :namespace_id GROUP BY what;

-- name: tenants_running
-- How many jobs of each tenant run.
-- params  namespace_id
SELECT l.tenant, count(*) FROM lease l CROSS JOIN class c ON c.class_id = l.class_id
 WHERE c.namespace_id = :namespace_id AND l.tenant > '' GROUP BY l.tenant;

-- name: tenants_waiting
-- The tenants whose jobs wait in each class, with how many, counted up to a bound, and since when the foremost does.
-- params  namespace_id, limit, bound
-- plan    one step for each tenant, however many jobs it has
WITH RECURSIVE head AS MATERIALIZED (
-- use line_heads
 WHERE c.namespace_id = :namespace_id AND c.fair = 1),
f (class_id, head_key, head_seq, tenant, number) AS (
  SELECT class_id, head_key, head_seq, '', 0 FROM head
  UNION ALL
  SELECT f.class_id, f.head_key, f.head_seq,
         (SELECT min(tenant) FROM
           (SELECT (SELECT t.tenant FROM tenant_line t
                     WHERE t.class_id = f.class_id AND t.tenant > f.tenant
                       AND (t.order_key, t.seq) >= (f.head_key, f.head_seq)
                       AND EXISTS (SELECT 1 FROM ready r WHERE r.class_id = t.class_id AND r.park = ''
                                      AND r.order_key = t.order_key AND r.seq = t.seq)
                     ORDER BY t.tenant LIMIT 1) AS tenant
             UNION ALL
            SELECT (SELECT min(b.tenant) FROM ready b INDEXED BY ready_blocked
                     WHERE b.class_id = f.class_id AND b.tenant > f.tenant AND b.park <> ''))),
         f.number + 1
    FROM f WHERE f.tenant IS NOT NULL AND f.number < :limit)
SELECT f.tenant, (SELECT count(*) FROM (SELECT 1 FROM (
-- use tenant_waiting
) LIMIT :bound)) AS waiting,
       (SELECT eligible_at FROM (SELECT order_key, seq, eligible_at FROM (
-- use tenant_waiting
) ORDER BY order_key, seq LIMIT 1)) AS oldest_at
  FROM f WHERE f.tenant > '';

-- name: waiting_of
-- A tenant's jobs that wait, by lane, and since when the foremost of them does.
-- params  tenant, namespace_id
WITH f AS MATERIALIZED (SELECT *, :tenant AS tenant FROM (
-- use line_heads
 WHERE c.namespace_id = :namespace_id AND c.fair = 1))
SELECT f.lane, sum((SELECT count(*) FROM (
-- use tenant_waiting
))) AS waiting,
       min((SELECT eligible_at FROM (SELECT order_key, seq, eligible_at FROM (
-- use tenant_waiting
) ORDER BY order_key, seq LIMIT 1))) AS oldest_at
  FROM f GROUP BY f.lane HAVING waiting > 0;
