-- prune: delete what is kept no longer.

-- name: attempts_delete
-- Forget the attempts of jobs.
-- params  seqs
DELETE FROM attempt WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: jobs_delete
-- Forget jobs.
-- params  seqs
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: lines_delete
-- Forget where jobs of tenants were in line.
-- params  seqs
DELETE FROM tenant_line WHERE (class_id, tenant, order_key, seq) IN
  (SELECT class_id, tenant, order_key, seq FROM job
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND tenant IS NOT NULL);

-- name: outcomes_delete
-- Forget how jobs ended.
-- params  seqs
DELETE FROM outcome WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: prune_bad
-- Jobs of one state that ended long enough ago.
-- params  state, finished_at, namespace_id, limit
SELECT o.seq FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.state = :state AND o.state <> 'completed' AND o.finished_at <= :finished_at AND j.namespace_id = :namespace_id
-- use unneeded
 ORDER BY o.seq LIMIT :limit;

-- name: prune_beyond
-- Jobs of one state that ended badly, but for the newest ones.
-- params  state, namespace_id, limit, most
-- plan    walks the index of what ended badly past the newest ones
SELECT j.seq FROM (SELECT o.seq FROM outcome o JOIN job n ON n.seq = o.seq
                    WHERE o.state = :state AND o.state <> 'completed' AND n.namespace_id = :namespace_id
                    ORDER BY o.finished_at DESC, o.seq DESC LIMIT -1 OFFSET :most) beyond
 CROSS JOIN job j ON j.seq = beyond.seq
 WHERE true
-- use unneeded
 LIMIT :limit;

-- name: prune_beyond_completed
-- Completed jobs but for those with the highest numbers.
-- params  after, namespace_id, limit, most
-- plan    walks the ended jobs from the highest number on, past those that stay
SELECT j.seq FROM (SELECT o.seq FROM outcome o JOIN job n ON n.seq = o.seq
                    WHERE o.seq > :after AND o.state = 'completed' AND n.namespace_id = :namespace_id
                    ORDER BY o.seq DESC LIMIT -1 OFFSET :most) beyond
 CROSS JOIN job j ON j.seq = beyond.seq
 WHERE true
-- use unneeded
 LIMIT :limit;

-- name: prune_expiry
-- The jobs that have expired. Those executing are left for later: they may come back to the queue.
-- params  namespace_id, now_at, limit
DELETE FROM expiry WHERE (namespace_id, expires_at, seq) IN
  (SELECT namespace_id, expires_at, seq FROM expiry e WHERE namespace_id = :namespace_id AND expires_at <= :now_at
      AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.seq = e.seq)
    ORDER BY expires_at, seq LIMIT :limit)
RETURNING seq;

-- name: prune_keys
-- Forget idempotency keys that have run out.
-- params  now_at, limit
DELETE FROM idempotency WHERE (namespace_id, tenant, idempotency_key) IN
  (SELECT namespace_id, tenant, idempotency_key FROM idempotency WHERE until_at <= :now_at LIMIT :limit);

-- name: prune_scan
-- A stretch of ended jobs by number, to look for completed ones that are old enough.
-- params  after, finished_at, limit
SELECT o.seq, o.state = 'completed' AND o.finished_at <= :finished_at
-- use unneeded
       AS old, j.namespace_id
  FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.seq > :after ORDER BY o.seq LIMIT :limit;

-- name: prune_tally
-- Remove the minutes that were folded.
-- params  before
DELETE FROM tally WHERE minute > 0 AND minute < :before;

-- name: prune_tally_fold
-- Add old minutes to the row of all that went before.
-- params  before
INSERT INTO tally (namespace_id, minute, what, count)
SELECT namespace_id, 0, what, sum(count) FROM tally WHERE minute > 0 AND minute < :before GROUP BY namespace_id, what
    ON CONFLICT DO UPDATE SET count = count + excluded.count;

-- name: prune_workers
-- Forget workers long dead that hold nothing.
-- params  before_at
DELETE FROM worker WHERE state = 'dead' AND lease_ends_at <= :before_at
   AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.worker_id = worker.worker_id);

-- name: prune_workers_bury
-- Mark the workers dead that let their deadline pass.
-- params  now_at
UPDATE worker SET state = 'dead', waiting = 0 WHERE state <> 'dead' AND lease_ends_at <= :now_at;

-- name: purge_named
-- Which of these jobs have ended in one of these states.
-- params  namespace_id, states, job_ids, limit
SELECT o.seq, o.state FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state IN (SELECT value FROM json_each(:states))
   AND j.job_id IN (SELECT value FROM json_each(:job_ids))
-- use unneeded
 ORDER BY o.seq LIMIT :limit;

-- name: purge_states
-- Jobs that have ended in one of these states.
-- params  namespace_id, states, limit
SELECT o.seq, o.state FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state IN (SELECT value FROM json_each(:states))
-- use unneeded
 ORDER BY o.seq LIMIT :limit;

-- name: prune_rates
-- Forget rates that have caught up with the clock.
-- params  namespace_id, now_us
DELETE FROM rate WHERE namespace_id = :namespace_id AND reached_us <= :now_us;
