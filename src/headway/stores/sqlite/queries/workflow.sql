-- workflow: edges between jobs, batches and steps.

-- name: batch_by_key
-- What adding to the batch of a tenant with this key must know of it.
-- params  namespace_id, key, tenant
SELECT batch_id, seq, tenant, cancel_at, finished_at FROM batch
 WHERE namespace_id = :namespace_id AND key = :key AND ifnull(tenant, '') = :tenant;

-- name: batches
-- These batches.
-- params  batch_ids, namespace_id
-- use batch
 WHERE b.batch_id IN (SELECT value FROM json_each(:batch_ids)) AND b.namespace_id = :namespace_id;

-- name: dependant_add
-- Keep what a job with edges waits for beside them.
-- params  seq, pending, due_at, back
INSERT INTO dependant (seq, pending, due_at, back) VALUES (:seq, :pending, :due_at, :back);

-- name: dependants_delete
-- Forget what jobs waited for.
-- params  seqs
DELETE FROM dependant WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: dependants_lower
-- One edge of each of these dependants was satisfied.
-- params  seqs
-- gives   how many edges each still waits for
UPDATE dependant SET pending = pending - 1 WHERE seq IN (SELECT value FROM json_each(:seqs)) RETURNING seq, pending;

-- name: edge_add
-- Keep an edge.
-- params  source_seq, dependant_seq, place, rule, satisfied, source
INSERT INTO edge (source_seq, dependant_seq, place, rule, satisfied, source)
VALUES (:source_seq, :dependant_seq, :place, :rule, :satisfied, :source);

-- name: edges_again
-- The callbacks among these jobs that have ended, and whose batch began a new round while they ran.
-- params  seqs
SELECT DISTINCT e.dependant_seq FROM edge e JOIN outcome o ON o.seq = e.dependant_seq
 WHERE e.dependant_seq IN (SELECT value FROM json_each(:seqs)) AND e.again = 1;

-- name: edges_delete
-- Forget the edges into jobs.
-- params  seqs
DELETE FROM edge WHERE dependant_seq IN (SELECT value FROM json_each(:seqs));

-- name: edges_satisfy
-- The edges from a source into these dependants are satisfied.
-- params  source_seq, seqs
UPDATE edge SET satisfied = true
 WHERE source_seq = :source_seq AND dependant_seq IN (SELECT value FROM json_each(:seqs));

-- name: edges_to
-- What these jobs wait or waited for, in the order given.
-- params  seqs, results
-- use edges_into
 WHERE e.dependant_seq IN (SELECT value FROM json_each(:seqs)) ORDER BY e.dependant_seq, e.place;

-- name: held_delete
-- Take held jobs out of the delayed ones.
-- params  namespace_id, held_at, seqs
DELETE FROM delayed WHERE namespace_id = :namespace_id AND due_at = :held_at
   AND seq IN (SELECT value FROM json_each(:seqs));

-- name: held_jobs
-- Held jobs, with what they need to become eligible.
-- params  namespace_id, held_at, seqs
SELECT d.class_id, d.seq, j.task, j.tenant, j.expires_at, j.unique_key, d.epoch, d.attempts, d.crashes, d.timeout_ms,
       d.token, d.error, d.reason, j.job_id, w.due_at, w.back, j.batch_seq
  FROM delayed d CROSS JOIN job j ON j.seq = d.seq CROSS JOIN dependant w ON w.seq = d.seq
 WHERE d.namespace_id = :namespace_id AND d.due_at = :held_at AND d.seq IN (SELECT value FROM json_each(:seqs))
 ORDER BY d.seq;

-- name: jobs_await
-- An edge comes from these jobs now.
-- params  seqs
UPDATE job SET awaited = 1 WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: leases_await
-- An edge comes from these running jobs now.
-- params  seqs
UPDATE lease SET awaited = 1 WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: sources
-- Those of these jobs and batches that exist, as sources of edges.
-- params  ids, namespace_id
SELECT j.job_id, j.seq, j.tenant,
       CASE WHEN o.state IS NULL THEN 'live' WHEN o.state = 'completed' THEN 'completed' ELSE 'failed' END AS status,
       false AS failing
  FROM job j LEFT JOIN outcome o ON o.seq = j.seq
 WHERE j.job_id IN (SELECT value FROM json_each(:ids)) AND j.namespace_id = :namespace_id
 UNION ALL
SELECT b.batch_id, b.seq, b.tenant, CASE WHEN b.finished_at IS NULL THEN 'live'
                                         WHEN b.failed + b.cancelled = 0 THEN 'completed' ELSE 'failed' END, b.failing
  FROM batch b WHERE b.batch_id IN (SELECT value FROM json_each(:ids)) AND b.namespace_id = :namespace_id;

-- name: steps_delete
-- Forget the steps of jobs.
-- params  seqs
DELETE FROM step WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: submit_marked_job
-- Keep what never changes about a job that is a member of a batch, or that an edge comes from.
-- params  seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, submitted_at, expires_at,
--         max_retries, timeout_ms, retry, idempotency_key, unique_key, limits, payload, batch_seq, awaited
INSERT INTO job (seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, submitted_at,
                 expires_at, max_retries, timeout_ms, retry, idempotency_key, unique_key, limits, payload, batch_seq,
                 awaited)
VALUES (:seq, :job_id, :namespace_id, :class_id, :order_key, :due_at, :task, :tenant, :trace_id, :submitted_at,
        :expires_at, :max_retries, :timeout_ms, :retry, :idempotency_key, :unique_key, :limits, :payload, :batch_seq,
        :awaited);
