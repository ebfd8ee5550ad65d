-- prune: delete what is kept no longer.

-- name: jobs_delete
-- Forget ended jobs with the edges into them and their steps.
-- Where completed ones lie by the day, their rows there stay until the day is dropped.
-- params  seqs, bad
-- gives   those forgotten
-- holds   of the others only those go that have not been taken back in the meantime
WITH o AS (DELETE FROM {schema}.outcome_bad WHERE seq = ANY (:bad::bigint[]) RETURNING seq),
d AS (DELETE FROM {schema}.outcome_any_day WHERE seq = ANY (:seqs::bigint[])),
a AS (DELETE FROM {schema}.attempt WHERE seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[])),
e AS (DELETE FROM {schema}.edge WHERE dependant_seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[])),
p AS (DELETE FROM {schema}.dependant WHERE seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[])),
s AS (DELETE FROM {schema}.step WHERE seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[]))
DELETE FROM {schema}.job WHERE seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[]) RETURNING seq;

-- name: partitions_maintain
-- Make the tables of the next days, and drop those of old days whose jobs are all forgotten.
-- params  now_at
SELECT {schema}.partitions_maintain_{version}(:now_at);

-- name: prune_bad
-- Jobs of one state that ended long enough ago.
-- params  state, finished_at, namespace_id, limit
SELECT o.seq FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq
 WHERE o.state = :state AND o.finished_at <= :finished_at AND j.namespace_id = :namespace_id
-- use unneeded
 ORDER BY o.seq LIMIT :limit;

-- name: prune_beyond
-- Jobs of one state that ended badly, but for the newest ones.
-- params  state, namespace_id, limit, most
-- plan    walks the index of what ended badly past the newest ones
SELECT j.seq FROM (SELECT o.seq, j.awaited, j.batch_seq FROM {schema}.outcome_bad o
                      JOIN {schema}.job j ON j.seq = o.seq
                     WHERE o.state = :state AND j.namespace_id = :namespace_id
                     ORDER BY o.finished_at DESC, o.seq DESC OFFSET :most) j
 WHERE true
-- use unneeded
 LIMIT :limit;

-- name: prune_beyond_completed
-- Completed jobs but for those with the highest numbers.
-- params  after, namespace_id, limit, most
-- plan    walks the completed jobs from the highest number on, down to those that were forgotten before
SELECT j.seq FROM (SELECT o.seq, j.awaited, j.batch_seq FROM {schema}.outcome_completed o
                      JOIN {schema}.job j ON j.seq = o.seq
                     WHERE o.seq > :after AND j.namespace_id = :namespace_id ORDER BY o.seq DESC OFFSET :most) j
 WHERE true
-- use unneeded
 LIMIT :limit;

-- name: prune_expiry
-- The jobs that have expired. Those executing are left for later: they may come back to the queue.
-- params  namespace_id, now_at, limit
DELETE FROM {schema}.expiry WHERE ctid = ANY (ARRAY(
  SELECT e.ctid FROM {schema}.expiry e WHERE e.namespace_id = :namespace_id AND e.expires_at <= :now_at
     AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.seq = e.seq)
   ORDER BY e.namespace_id, e.expires_at, e.seq LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING seq;

-- name: prune_keys
-- Forget idempotency keys that have run out.
-- params  now_at, limit
DELETE FROM {schema}.idempotency WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {schema}.idempotency WHERE until_at <= :now_at LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: prune_scan
-- A stretch of completed jobs by number, to look for those that are old enough.
-- params  after, finished_at, ends_at, limit
-- gives   no namespace for those that are forgotten: their days will be dropped
-- plan    days that end later than ends_at are not looked at
SELECT o.seq, o.finished_at <= :finished_at
-- use unneeded
       AS old, j.namespace_id FROM {schema}.outcome_completed o
  LEFT JOIN {schema}.job j ON j.seq = o.seq
 WHERE o.seq > :after AND o.finished_at < :ends_at ORDER BY o.seq LIMIT :limit;

-- name: prune_tally
-- Fold old minutes into the row of all that went before.
-- params  namespace_id, before
WITH gone AS (DELETE FROM {schema}.tally WHERE namespace_id = :namespace_id AND minute > 0 AND minute < :before
              RETURNING what, count)
INSERT INTO {schema}.tally AS t (namespace_id, minute, shard, what, count)
SELECT :namespace_id, 0, 0, what, sum(count) FROM gone GROUP BY what
    ON CONFLICT (namespace_id, minute, what, shard) DO UPDATE SET count = t.count + excluded.count;

-- name: prune_workers
-- Forget workers long dead that hold nothing.
-- params  before_at
DELETE FROM {schema}.worker w WHERE w.state = 'dead' AND w.lease_ends_at <= :before_at
   AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.worker_id = w.worker_id);

-- name: prune_workers_bury
-- Mark the workers dead that let their deadline pass. A process that is busy with one sees to it as well.
-- params  now_at
UPDATE {schema}.worker SET state = 'dead', waiting = NULL WHERE worker_id IN (
  SELECT w.worker_id FROM {schema}.worker w WHERE w.state <> 'dead' AND w.lease_ends_at <= :now_at
   ORDER BY w.worker_id FOR NO KEY UPDATE SKIP LOCKED);

-- name: purge_named
-- Which of these jobs have ended in one of these states.
-- params  namespace_id, states, job_ids, limit
SELECT o.seq, o.state FROM {schema}.outcome o JOIN {schema}.job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state = ANY (:states::text[]) AND j.job_id = ANY (:job_ids::text[])
-- use unneeded
 ORDER BY o.seq LIMIT :limit;

-- name: purge_states
-- Jobs that have ended in one of these states.
-- params  namespace_id, states, limit
SELECT o.seq, o.state FROM {schema}.outcome o JOIN {schema}.job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state = ANY (:states::text[])
-- use unneeded
 ORDER BY o.seq LIMIT :limit;

-- name: prune_rates
-- Forget rates that have caught up with the clock, and limits that count no lease.
-- params  namespace_id, now_us
WITH unused AS (DELETE FROM {schema}.limit_usage WHERE namespace_id = :namespace_id AND count = 0)
DELETE FROM {schema}.rate WHERE namespace_id = :namespace_id AND reached_us <= :now_us;
