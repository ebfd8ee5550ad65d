-- finish: end, cancel and retry jobs.

-- name: delay
-- Hold a job back until it is due, and note where it is.
-- params  namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason
WITH placed AS (UPDATE {schema}.job SET class_id = :class_id, park = '', order_key = NULL, due_at = :due_at
                 WHERE seq = :seq)
INSERT INTO {schema}.delayed (namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error,
                              reason)
VALUES (:namespace_id, :due_at, :seq, :class_id, :epoch, :attempts, :crashes, :timeout_ms, :token, :error, :reason);

-- name: finish_attempt
-- Keep attempts that did not complete their jobs.
-- params  ended_at, seqs, reasons, errors
-- plan    as finish_outcome
INSERT INTO {schema}.attempt (seq, epoch, number, worker_id, started_at, ended_at, reason, error)
SELECT l.seq, l.epoch, l.attempts, l.worker_id, l.started_at, :ended_at, x.reason, x.error
  FROM unnest(:seqs::bigint[], :reasons::text[], :errors::text[]) x (seq, reason, error)
 CROSS JOIN LATERAL (SELECT * FROM {schema}.lease l WHERE l.seq = x.seq OFFSET 0) l
    ON CONFLICT (seq, epoch) DO UPDATE SET reason = excluded.reason, error = excluded.error,
       ended_at = excluded.ended_at;

-- name: finish_outcome
-- Keep how leased jobs ended; their leases tell the rest.
-- params  finished_at, seqs, states, attempts, crashes, timeouts, reasons, errors, problems, results
-- plan    looks each lease up by its number: a join could walk over the dead rows of those that have ended
INSERT INTO {schema}.outcome (seq, state, finished_at, worker_id, token, started_at, eligible_at, epoch, attempts,
                              crashes, timeout_ms, cancel_at, progress, note, reason, error, result_error, result,
                              parked_for, parked_ms)
SELECT l.seq, x.state, :finished_at, l.worker_id, l.token, l.started_at, l.eligible_at, l.epoch, x.attempts, x.crashes,
       coalesce(nullif(x.timeout_ms, 0), l.timeout_ms), l.cancel_at, l.progress, l.note, x.reason, x.error, x.problem,
       x.result, l.parked_for, l.parked_ms
  FROM unnest(:seqs::bigint[], :states::text[], :attempts::int[], :crashes::int[], :timeouts::bigint[],
              :reasons::text[], :errors::text[], :problems::text[], :results::bytea[])
       x (seq, state, attempts, crashes, timeout_ms, reason, error, problem, result)
 CROSS JOIN LATERAL (SELECT * FROM {schema}.lease l WHERE l.seq = x.seq OFFSET 0) l;

-- name: free_unique
-- Let go of unique keys.
-- params  namespace_id, unique_keys
DELETE FROM {schema}.unique_key WHERE namespace_id = :namespace_id AND unique_key = ANY (:unique_keys::text[]);

-- name: hold_unique
-- Let a live job hold its unique key.
-- params  namespace_id, unique_key, job_id
INSERT INTO {schema}.unique_key (namespace_id, unique_key, job_id) VALUES (:namespace_id, :unique_key, :job_id);

-- name: jobs_exist
-- Which jobs of these numbers are kept; transient ones never are.
-- params  seqs
SELECT seq FROM {schema}.job WHERE seq = ANY (:seqs::bigint[]);

-- name: known_unique
-- The live job that holds a unique key.
-- params  namespace_id, unique_key
SELECT job_id FROM {schema}.unique_key WHERE namespace_id = :namespace_id AND unique_key = :unique_key;

-- name: last_token
-- The token of the lease that each of these jobs had last, and where the job is now.
-- params  seqs
SELECT j.seq, coalesce(o.token, r.token, d.token) AS token, coalesce(o.state, 'queued') AS state FROM {schema}.job j
  LEFT JOIN {schema}.outcome o ON o.seq = j.seq
  LEFT JOIN {schema}.ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key
     AND r.seq = j.seq
  LEFT JOIN {schema}.delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
 WHERE j.seq = ANY (:seqs::bigint[]) AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.seq = j.seq);

-- name: lease_delete
-- End leases, and lower the counts of their workers and limits.
-- params  seqs
WITH gone AS (DELETE FROM {schema}.lease WHERE seq = ANY (:seqs::bigint[]) RETURNING worker_id, limit_keys, class_id),
freed AS (UPDATE {schema}.worker w SET running = w.running - x.count
            FROM (SELECT worker_id, count(*) AS count FROM gone GROUP BY worker_id) x
           WHERE w.worker_id = x.worker_id)
SELECT {schema}.count_usage_{version}(c.namespace_id, array_agg(k.key), array_agg(-1))
  FROM gone JOIN {schema}.class c ON c.class_id = gone.class_id CROSS JOIN LATERAL unnest(gone.limit_keys) k (key)
 GROUP BY c.namespace_id;

-- name: leases_by_seq
-- The leases that a batch of reports speaks of, locked until the end, with what may change how they end.
-- params  seqs
SELECT seq, token, cancel_at, unique_key, limit_keys, batch_seq, awaited FROM {schema}.lease
 WHERE seq = ANY (:seqs::bigint[]) ORDER BY seq FOR UPDATE;

-- name: workers_lock
-- Lock the workers whose leases a batch of reports may end, and the one that asks, in one order.
-- params  seqs, worker_id
SELECT w.worker_id FROM {schema}.worker w
 WHERE w.worker_id IN (SELECT l.worker_id FROM {schema}.lease l WHERE l.seq = ANY (:seqs::bigint[]))
    OR w.worker_id = :worker_id
 ORDER BY w.worker_id FOR NO KEY UPDATE;
