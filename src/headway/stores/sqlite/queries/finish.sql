-- finish: end, cancel and retry jobs.

-- name: delay
-- Hold a job back until it is due.
-- params  namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason
INSERT INTO delayed (namespace_id, due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason)
VALUES (:namespace_id, :due_at, :seq, :class_id, :epoch, :attempts, :crashes, :timeout_ms, :token, :error, :reason);

-- name: finish_attempt
-- Keep an attempt that did not complete its job.
-- params  ended_at, seq, reason, error
INSERT OR REPLACE INTO attempt (seq, epoch, number, worker_id, started_at, ended_at, reason, error)
SELECT seq, epoch, attempts, worker_id, started_at, :ended_at, :reason, :error FROM lease WHERE seq = :seq;

-- name: finish_outcome
-- Keep how a leased job ended; its lease tells the rest.
-- params  finished_at, seq, state, attempts, crashes, timeout_ms, reason, error, result_error, result
INSERT INTO outcome (seq, state, finished_at, worker_id, token, started_at, eligible_at, epoch, attempts, crashes,
                     timeout_ms, cancel_at, progress, note, reason, error, result_error, result, parked_for, parked_ms)
WITH ended (finished_at, seq, state, attempts, crashes, timeout_ms, reason, error, result_error, result) AS
  (VALUES (:finished_at, :seq, :state, :attempts, :crashes, :timeout_ms, :reason, :error, :result_error, :result))
SELECT e.seq, e.state, e.finished_at, l.worker_id, l.token, l.started_at, l.eligible_at, l.epoch, e.attempts, e.crashes,
       coalesce(nullif(e.timeout_ms, 0), l.timeout_ms), l.cancel_at, l.progress, l.note, e.reason, e.error,
       e.result_error, e.result, l.parked_for, l.parked_ms
  FROM ended e CROSS JOIN lease l ON l.seq = e.seq;

-- name: free_unique
-- Let go of a unique key.
-- params  namespace_id, unique_key
DELETE FROM unique_key WHERE namespace_id = :namespace_id AND unique_key = :unique_key;

-- name: hold_unique
-- Let a live job hold its unique key.
-- params  namespace_id, unique_key, job_id
INSERT INTO unique_key (namespace_id, unique_key, seq)
SELECT :namespace_id, :unique_key, seq FROM job WHERE job_id = :job_id AND namespace_id = :namespace_id;

-- name: jobs_exist
-- Which jobs of these numbers are kept; transient ones never are.
-- params  seqs
SELECT seq FROM job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: known_unique
-- The live job that holds a unique key.
-- params  namespace_id, unique_key
SELECT j.job_id FROM unique_key u JOIN job j ON j.seq = u.seq
 WHERE u.namespace_id = :namespace_id AND u.unique_key = :unique_key;

-- name: last_token
-- The token of the lease that each of these jobs had last, and where the job is now.
-- params  seqs
SELECT j.seq, coalesce(o.token, r.token, d.token) AS token, coalesce(o.state, 'queued') AS state FROM job j
  LEFT JOIN outcome o ON o.seq = j.seq
  LEFT JOIN ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key AND r.seq = j.seq
  LEFT JOIN delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
 WHERE j.seq IN (SELECT value FROM json_each(:seqs)) AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.seq = j.seq);

-- name: lease_delete
-- End leases.
-- params  seqs
DELETE FROM lease WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: leases_by_seq
-- The leases that a batch of reports speaks of, with what may change how they end.
-- params  seqs
SELECT seq, token, cancel_at, unique_key, held, batch_seq, awaited FROM lease
 WHERE seq IN (SELECT value FROM json_each(:seqs));
