-- query: read jobs, the snapshot and the statistics.

-- part: filters
-- What find's callers may ask of a job; j is the job, c its class.
   AND j.namespace_id = :namespace_id
   AND (:task::text IS NULL OR j.task = :task)
   AND (:lane::text IS NULL OR c.lane = :lane)
   AND (:tenant::text IS NULL OR j.tenant = :tenant)
   AND (:submitted_before_at::bigint IS NULL OR j.submitted_at < :submitted_before_at)
   AND (:submitted_after_at::bigint IS NULL OR j.submitted_at >= :submitted_after_at)

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
  FROM {schema}.job j JOIN {schema}.class c ON c.class_id = j.class_id
  LEFT JOIN {schema}.lease l ON l.seq = j.seq
  LEFT JOIN {schema}.outcome o ON o.seq = j.seq
  LEFT JOIN {schema}.ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key
     AND r.seq = j.seq
  LEFT JOIN {schema}.delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
  LEFT JOIN {schema}.batch b ON b.seq = j.batch_seq

-- name: blocked_queues
-- The blocked queues by counter and lane: how many jobs wait there, up to a bound, and when the first one opens.
-- params  namespace_id, limit, bound, now_at
SELECT p.park, c.lane, sum(w.waiting)::bigint AS waiting, min(p.open_at) FILTER (WHERE p.open_at > :now_at) AS open_at
  FROM (SELECT DISTINCT park FROM {schema}.park WHERE namespace_id = :namespace_id
         ORDER BY park LIMIT :limit::int) counted
  JOIN {schema}.park p ON p.namespace_id = :namespace_id AND p.park = counted.park
  JOIN {schema}.class c ON c.class_id = p.class_id
  CROSS JOIN LATERAL (
    SELECT count(*) AS waiting FROM (SELECT 1 FROM {schema}.ready r WHERE r.class_id = p.class_id AND r.park = p.park
                                      LIMIT :bound::int) bounded) w
 GROUP BY p.park, c.lane;

-- name: find_any
-- Jobs in any state, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.job j JOIN {schema}.class c ON c.class_id = j.class_id
  LEFT JOIN {schema}.lease l ON l.seq = j.seq LEFT JOIN {schema}.outcome o ON o.seq = j.seq
 WHERE (:worker_id::text IS NULL OR coalesce(l.worker_id, o.worker_id) = :worker_id)
-- use filters
   AND j.seq < :before ORDER BY j.seq DESC LIMIT :limit;

-- name: find_bad
-- Jobs that ended in one of the other states, newest first.
-- params  state, worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq
  JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE o.state = :state AND (:worker_id::text IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND o.seq < :before ORDER BY o.seq DESC LIMIT :limit;

-- name: find_completed
-- Completed jobs, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.outcome_completed o JOIN {schema}.job j ON j.seq = o.seq
  JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE (:worker_id::text IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND o.seq < :before ORDER BY o.seq DESC LIMIT :limit;

-- name: find_ended
-- Jobs that ended in one of the other states, those that ended last first.
-- params  state, worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, ended_at,
--         ended_seq, limit
SELECT j.seq, o.finished_at FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq
  JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE o.state = :state AND (:worker_id::text IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND (o.finished_at, o.seq) < (:ended_at, :ended_seq) ORDER BY o.finished_at DESC, o.seq DESC LIMIT :limit;

-- name: find_executing
-- Executing jobs, newest first.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.lease l JOIN {schema}.job j ON j.seq = l.seq JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE (:worker_id::text IS NULL OR l.worker_id = :worker_id)
-- use filters
   AND l.seq < :before ORDER BY l.seq DESC LIMIT :limit;

-- name: find_queued
-- Queued jobs, newest first. They have no worker.
-- params  worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, before, limit
SELECT j.seq FROM {schema}.job j JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE :worker_id::text IS NULL
   AND (EXISTS (SELECT FROM {schema}.ready r WHERE r.class_id = j.class_id AND r.park = j.park
                   AND r.order_key = j.order_key AND r.seq = j.seq)
        OR EXISTS (SELECT FROM {schema}.delayed d WHERE d.namespace_id = j.namespace_id AND d.due_at = j.due_at
                      AND d.seq = j.seq))
-- use filters
   AND j.seq < :before ORDER BY j.seq DESC LIMIT :limit;

-- name: get
-- Everything about these jobs.
-- params  job_ids, namespace_id
-- use job
 WHERE j.job_id = ANY (:job_ids::text[]) AND j.namespace_id = :namespace_id;

-- name: get_by_seq
-- Everything about the jobs of these numbers.
-- params  seqs
-- use job
 WHERE j.seq = ANY (:seqs::bigint[]);

-- name: history
-- The attempts of these jobs that did not complete them.
-- params  seqs
SELECT seq, number, epoch, worker_id, started_at, ended_at, reason, error FROM {schema}.attempt
 WHERE seq = ANY (:seqs::bigint[]) ORDER BY seq, epoch;

-- name: ids_by_seq
-- The ids of the jobs of these numbers.
-- params  seqs
SELECT seq, job_id FROM {schema}.job WHERE seq = ANY (:seqs::bigint[]);

-- name: match_words
-- The jobs with all of these words in their arguments, and those with letters beyond ASCII or backslashes.
-- The text that is searched here writes such letters in another way.
-- params  job_ids, namespace_id, words
SELECT j.job_id FROM {schema}.job j
 WHERE j.job_id = ANY (:job_ids::text[]) AND j.namespace_id = :namespace_id
   AND (octet_length(j.payload) <> length(encode(j.payload, 'escape'))
        OR (SELECT bool_and(strpos(lower(encode(j.payload, 'escape')), w) > 0) FROM unnest(:words::text[]) w));

-- name: snapshot
-- Read what waits.
-- params  namespace_id, now_at, bound, f_class, f_floor, f_rewound, rung_names
SELECT {schema}.snapshot_{version}(:namespace_id, :now_at, :bound, :f_class, :f_floor, :f_rewound, :rung_names);

-- name: stats_kept
-- The jobs that ended badly and are still kept.
-- params  namespace_id
SELECT o.state, count(*) AS count FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id GROUP BY o.state;

-- name: stats_lanes
-- Each lane in numbers.
-- params  namespace_id, held_at
SELECT c.lane,
       (sum((SELECT count(*) FROM {schema}.ready r WHERE r.class_id = c.class_id))
         + sum((SELECT count(*) FROM {schema}.transient t WHERE t.class_id = c.class_id)))::bigint AS waiting,
       min(CASE WHEN c.fair THEN (SELECT r.eligible_at FROM {schema}.ready r
                                   WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                                   ORDER BY r.eligible_at LIMIT 1)
                ELSE (SELECT r.eligible_at FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.park = ''
                       ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) END) AS oldest_at,
       sum((SELECT count(*) FROM {schema}.delayed d WHERE d.namespace_id = c.namespace_id AND d.due_at < :held_at
               AND d.class_id = c.class_id))::bigint AS delayed,
       sum((SELECT count(*) FROM {schema}.lease l WHERE l.class_id = c.class_id))::bigint AS executing,
       sum((SELECT count(*) FROM {schema}.delayed d WHERE d.namespace_id = c.namespace_id AND d.due_at = :held_at
               AND d.class_id = c.class_id))::bigint AS held
  FROM {schema}.class c WHERE c.namespace_id = :namespace_id GROUP BY c.lane;

-- name: stats_tally
-- The totals, all minutes together and the recent ones by themselves.
-- params  namespace_id, since
SELECT what, sum(count)::bigint AS total, coalesce(sum(count) FILTER (WHERE minute >= :since), 0)::bigint AS recent
  FROM {schema}.tally WHERE namespace_id = :namespace_id GROUP BY what;

-- name: tenants_running
-- How many jobs of each tenant run.
-- params  namespace_id
SELECT l.tenant, count(*) FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE c.namespace_id = :namespace_id AND l.tenant > '' GROUP BY l.tenant;

-- name: tenants_waiting
-- The tenants whose jobs wait in each class, with how many, counted up to a bound, and since when the foremost does.
-- params  namespace_id, limit, bound
-- plan    one step of the index for each tenant, however many jobs it has
WITH RECURSIVE found (class_id, tenant, number) AS (
  SELECT c.class_id, (SELECT r.tenant FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.tenant > ''
                       ORDER BY r.tenant LIMIT 1), 1
    FROM {schema}.class c WHERE c.namespace_id = :namespace_id AND c.fair
  UNION ALL
  SELECT f.class_id, (SELECT r.tenant FROM {schema}.ready r WHERE r.class_id = f.class_id AND r.tenant > f.tenant
                       ORDER BY r.tenant LIMIT 1), f.number + 1
    FROM found f WHERE f.tenant IS NOT NULL AND f.number < :limit::int)
SELECT f.tenant, (SELECT count(*) FROM (SELECT 1 FROM {schema}.ready r WHERE r.class_id = f.class_id
                                           AND r.tenant = f.tenant LIMIT :bound::int) counted) AS waiting,
       (SELECT r.eligible_at FROM {schema}.ready r WHERE r.class_id = f.class_id AND r.tenant = f.tenant
         ORDER BY r.order_key, r.seq LIMIT 1) AS oldest_at
  FROM found f WHERE f.tenant IS NOT NULL;

-- name: waiting_of
-- A tenant's jobs that wait, by lane, and since when the foremost of them does.
-- params  tenant, namespace_id
SELECT c.lane, sum(w.waiting)::bigint AS waiting, min(w.oldest_at) AS oldest_at
  FROM {schema}.class c
  CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.tenant = :tenant) AS waiting,
           (SELECT r.eligible_at FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.tenant = :tenant
             ORDER BY r.order_key, r.seq LIMIT 1) AS oldest_at) w
 WHERE c.namespace_id = :namespace_id AND c.fair AND w.waiting > 0 GROUP BY c.lane;
