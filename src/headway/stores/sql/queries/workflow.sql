-- workflow: edges between jobs, batches and steps.

-- part: batch
-- Everything about a batch.
SELECT b.batch_id, b.seq, b.name, b.key, b.tenant, b.open, b.total, b.live, b.children, b.held, b.completed, b.failed,
       b.cancelled, b.failing, b.round, b.created_at, b.cancel_at, b.finished_at,
       (SELECT p.batch_id FROM {schema}.batch p WHERE p.seq = b.parent_seq) AS parent,
       coalesce(r.running, 0) AS running
  FROM {schema}.batch b
  LEFT JOIN (SELECT l.batch_seq, count(*) AS running FROM {schema}.lease l WHERE l.batch_seq IS NOT NULL
              GROUP BY l.batch_seq) r ON r.batch_seq = b.seq

-- part: edges_into
-- The edges of a dependant, with their sources as they are now. A source that was pruned counts by its edge.
SELECT e.dependant_seq, e.source_seq, e.source, e.rule, e.satisfied,
       CASE WHEN b.seq IS NOT NULL THEN CASE WHEN b.finished_at IS NULL THEN 'live'
                                             WHEN b.failed + b.cancelled = 0 THEN 'completed' ELSE 'failed' END
            WHEN j.seq IS NOT NULL THEN CASE WHEN o.state IS NULL THEN 'live'
                                             WHEN o.state = 'completed' THEN 'completed' ELSE 'failed' END
            WHEN e.satisfied THEN 'completed' ELSE 'failed' END AS status,
       CASE WHEN j.seq IS NOT NULL THEN CASE WHEN l.seq IS NOT NULL THEN 'executing'
                                             ELSE coalesce(o.state, 'queued') END END AS state,
       CASE WHEN :results AND j.seq IS NOT NULL THEN o.result END AS result, b.name,
       coalesce(b.live, 0) AS live, coalesce(b.total, 0) AS total, b.failing,
       b.seq IS NULL AND j.seq IS NULL AS pruned
  FROM {schema}.edge e LEFT JOIN {schema}.batch b ON b.seq = e.source_seq
  LEFT JOIN {schema}.job j ON j.seq = e.source_seq
  LEFT JOIN {schema}.lease l ON l.seq = j.seq LEFT JOIN {schema}.outcome o ON o.seq = j.seq

-- part: unneeded
-- No live job may still read the result of j: none has an edge from it, nor from its batch, which has ended.
   AND (j.awaited IS NULL
        OR NOT EXISTS (SELECT 1 FROM {schema}.edge e WHERE e.source_seq = j.seq
                          AND NOT EXISTS (SELECT 1 FROM {schema}.outcome x WHERE x.seq = e.dependant_seq)))
   AND (j.batch_seq IS NULL
        OR EXISTS (SELECT 1 FROM {schema}.batch b WHERE b.seq = j.batch_seq AND b.finished_at IS NOT NULL)
           AND NOT EXISTS (SELECT 1 FROM {schema}.edge e WHERE e.source_seq = j.batch_seq
                              AND NOT EXISTS (SELECT 1 FROM {schema}.outcome x WHERE x.seq = e.dependant_seq)))

-- name: batch_add
-- Keep a new batch.
-- params  seq, namespace_id, batch_id, name, key, tenant, parent_seq, open, created_at
INSERT INTO {schema}.batch (seq, namespace_id, batch_id, name, key, tenant, parent_seq, open, created_at)
VALUES (:seq, :namespace_id, :batch_id, :name, :key, :tenant, :parent_seq, :open, :created_at);

-- name: batch_by_id
-- What adding to a batch must know of it.
-- params  batch_id, namespace_id
SELECT batch_id, seq, tenant, cancel_at, finished_at FROM {schema}.batch
 WHERE batch_id = :batch_id AND namespace_id = :namespace_id;

-- name: batch_cancel
-- Cancel a batch that has not ended; it is no longer open.
-- params  now_at, seq
-- gives   the batch, if this has cancelled it
UPDATE {schema}.batch SET cancel_at = :now_at, open = false
 WHERE seq = :seq AND cancel_at IS NULL AND finished_at IS NULL RETURNING seq;

-- name: batch_children
-- The child batches of a batch.
-- params  parent_seq
SELECT seq FROM {schema}.batch WHERE parent_seq = :parent_seq ORDER BY seq;

-- name: batch_close
-- Let a batch end once all its members have ended.
-- params  seq
UPDATE {schema}.batch SET open = false WHERE seq = :seq;

-- name: batch_count
-- Add to the counts of a batch, once for all that a transaction has changed.
-- params  seq, live, children, held, completed, failed, cancelled
-- gives   what decides whether it has failed, ended or begun a round
UPDATE {schema}.batch SET live = live + :live, children = children + :children, held = held + :held,
       completed = completed + :completed, failed = failed + :failed, cancelled = cancelled + :cancelled
 WHERE seq = :seq
RETURNING open, live, failed, cancelled, failing, round, cancel_at, finished_at, parent_seq;

-- name: batch_delete
-- Forget a batch.
-- params  seq
DELETE FROM {schema}.batch WHERE seq = :seq;

-- name: batch_grow
-- Count new members of a batch, if it takes any.
-- params  seq, members, children, held
-- gives   the batch, unless it was cancelled or has ended
UPDATE {schema}.batch SET total = total + :members, live = live + :members, children = children + :children,
       held = held + :held
 WHERE seq = :seq AND cancel_at IS NULL AND finished_at IS NULL RETURNING seq;

-- name: batch_set_state
-- Note whether a batch is failing, its round, whether it was cancelled, and when it ended.
-- params  failing, round, cancel_at, finished_at, seq
-- gives   whether an edge comes from it
UPDATE {schema}.batch SET failing = :failing, round = :round, cancel_at = :cancel_at, finished_at = :finished_at
 WHERE seq = :seq
RETURNING EXISTS (SELECT 1 FROM {schema}.edge e WHERE e.source_seq = :seq);

-- name: dependant_lower
-- A dependant waits for one edge less.
-- params  seq
UPDATE {schema}.dependant SET pending = pending - 1 WHERE seq = :seq;

-- name: dependant_raise
-- A dependant waits for one edge more.
-- params  seq
UPDATE {schema}.dependant SET pending = pending + 1 WHERE seq = :seq;

-- name: edge_again
-- A new round has begun while a callback runs.
-- params  source_seq, dependant_seq
UPDATE {schema}.edge SET again = true WHERE source_seq = :source_seq AND dependant_seq = :dependant_seq;

-- name: edges_again_clear
-- A callback is held again.
-- params  dependant_seq
UPDATE {schema}.edge SET again = false WHERE dependant_seq = :dependant_seq AND again;

-- name: edge_satisfy
-- An edge is satisfied.
-- params  source_seq, dependant_seq
UPDATE {schema}.edge SET satisfied = true WHERE source_seq = :source_seq AND dependant_seq = :dependant_seq;

-- name: edge_unsatisfy
-- The source of an edge is live again, so that the edge is unsatisfied.
-- params  source_seq, dependant_seq
UPDATE {schema}.edge SET satisfied = false WHERE source_seq = :source_seq AND dependant_seq = :dependant_seq;

-- name: edges_from
-- The edges of a source behind a dependant, and whether each of the next dependants is held, runs, or how it ended.
-- params  source_seq, reached, namespace_id, held_at, limit
SELECT e.dependant_seq, e.rule, e.satisfied, d.seq IS NOT NULL AS held,
       CASE WHEN l.seq IS NOT NULL THEN 'executing' ELSE o.state END AS state, o.reason
  FROM {schema}.edge e
  LEFT JOIN {schema}.delayed d ON d.namespace_id = :namespace_id AND d.due_at = :held_at AND d.seq = e.dependant_seq
  LEFT JOIN {schema}.lease l ON l.seq = e.dependant_seq LEFT JOIN {schema}.outcome o ON o.seq = e.dependant_seq
 WHERE e.source_seq = :source_seq AND e.dependant_seq > :reached ORDER BY e.dependant_seq LIMIT :limit;

-- name: find_batches
-- Batches, newest first.
-- params  namespace_id, tenant, statuses, before, limit
-- use batch
 WHERE b.namespace_id = :namespace_id AND b.seq < :before
   AND (CAST(:tenant AS TEXT) IS NULL OR b.tenant = :tenant)
   AND (CAST(:statuses AS TEXT) IS NULL
        OR :statuses LIKE '%,' || CASE WHEN b.open THEN 'open' WHEN b.live > 0 THEN 'running'
                                       WHEN b.cancel_at IS NOT NULL AND b.cancelled > 0 THEN 'cancelled'
                                       WHEN b.failed + b.cancelled > 0 THEN 'failed' ELSE 'completed' END || ',%')
 ORDER BY b.seq DESC LIMIT :limit;

-- name: lease_token
-- The token of the lease that a job has.
-- params  seq
SELECT token FROM {schema}.lease WHERE seq = :seq;

-- name: members
-- Jobs of a batch in the order of adding, of any state or of some states.
-- params  batch_seq, beyond, states, limit
SELECT j.seq FROM {schema}.job j LEFT JOIN {schema}.lease l ON l.seq = j.seq
  LEFT JOIN {schema}.outcome o ON o.seq = j.seq
 WHERE j.batch_seq = :batch_seq AND j.seq > :beyond
   AND (CAST(:states AS TEXT) IS NULL
        OR :states LIKE '%,' || CASE WHEN l.seq IS NOT NULL THEN 'executing' ELSE coalesce(o.state, 'queued') END
                        || ',%')
 ORDER BY j.seq LIMIT :limit;

-- name: batch_parent
-- The id of the parent of a batch.
-- params  batch_id, namespace_id
SELECT p.batch_id FROM {schema}.batch b JOIN {schema}.batch p ON p.seq = b.parent_seq
 WHERE b.batch_id = :batch_id AND b.namespace_id = :namespace_id;

-- name: outcome_set_reason
-- An ended job has another reason now.
-- params  reason, seq
UPDATE {schema}.outcome SET reason = :reason WHERE seq = :seq;

-- name: members_next
-- Jobs of a batch behind one of them, and whether each is live.
-- params  batch_seq, reached, limit
SELECT j.seq, o.seq IS NULL AS live FROM {schema}.job j LEFT JOIN {schema}.outcome o ON o.seq = j.seq
 WHERE j.batch_seq = :batch_seq AND j.seq > :reached ORDER BY j.seq LIMIT :limit;

-- name: prune_batches_scan
-- A stretch of batches by number, and whether each may go.
-- It may if it has ended, nothing of it is left, no live job waits for it, and, if it never had a member, it ended long
-- enough ago.
-- params  after, namespace_id, finished_at, limit
SELECT b.seq, b.finished_at IS NOT NULL AND (b.total > 0 OR b.finished_at <= :finished_at)
              AND NOT EXISTS (SELECT 1 FROM {schema}.job j WHERE j.batch_seq = b.seq)
              AND NOT EXISTS (SELECT 1 FROM {schema}.batch c WHERE c.parent_seq = b.seq)
              AND NOT EXISTS (SELECT 1 FROM {schema}.edge e WHERE e.source_seq = b.seq
                                 AND NOT EXISTS (SELECT 1 FROM {schema}.outcome x WHERE x.seq = e.dependant_seq))
              AS unneeded
  FROM {schema}.batch b WHERE b.seq > :after AND b.namespace_id = :namespace_id ORDER BY b.seq LIMIT :limit;

-- name: source
-- A job or batch as the source of edges: its id, its status, and whether it is a failing batch.
-- params  seq
SELECT b.batch_id AS id, CASE WHEN b.finished_at IS NULL THEN 'live' WHEN b.failed + b.cancelled = 0 THEN 'completed'
                              ELSE 'failed' END AS status, b.failing
  FROM {schema}.batch b WHERE b.seq = :seq
 UNION ALL
SELECT j.job_id, CASE WHEN o.state IS NULL THEN 'live' WHEN o.state = 'completed' THEN 'completed' ELSE 'failed' END,
       false
  FROM {schema}.job j LEFT JOIN {schema}.outcome o ON o.seq = j.seq WHERE j.seq = :seq;

-- name: step_add
-- Keep a step.
-- params  seq, number, key, value, bytes
INSERT INTO {schema}.step (seq, number, key, value, bytes) VALUES (:seq, :number, :key, :value, :bytes);

-- name: step_known
-- Whether a job has a step with this key.
-- params  seq, key
SELECT 1 FROM {schema}.step WHERE seq = :seq AND key = :key;

-- name: step_last
-- How many steps a job has, and how many bytes.
-- params  seq
SELECT number, bytes FROM {schema}.step WHERE seq = :seq ORDER BY number DESC LIMIT 1;

-- name: steps
-- The steps of a job, in order.
-- params  job_id, namespace_id
SELECT s.key, s.value FROM {schema}.job j JOIN {schema}.step s ON s.seq = j.seq
 WHERE j.job_id = :job_id AND j.namespace_id = :namespace_id ORDER BY s.number;

-- name: steps_forget
-- Forget the steps of a job that starts from nothing.
-- params  seq
DELETE FROM {schema}.step WHERE seq = :seq;

-- name: unsettled
-- What earlier verbs have left: sources with edges to settle, then cancelled batches with members to cancel.
-- params  namespace_id, limit
SELECT source_seq, members, reached FROM {schema}.unsettled WHERE namespace_id = :namespace_id
 ORDER BY members, place LIMIT :limit;

-- name: unsettled_delete
-- Nothing of a source is left.
-- params  source_seq, members
DELETE FROM {schema}.unsettled WHERE source_seq = :source_seq AND members = :members;

-- name: unsettled_put
-- Note how far the edges of a source were settled, or the members of a batch cancelled.
-- params  namespace_id, source_seq, members, reached
-- gives   the source, unless no edge of it is left
INSERT INTO {schema}.unsettled (namespace_id, source_seq, members, reached)
SELECT CAST(:namespace_id AS INT), CAST(:source_seq AS BIGINT), CAST(:members AS BOOLEAN), CAST(:reached AS BIGINT)
 WHERE :members
    OR EXISTS (SELECT 1 FROM {schema}.edge e WHERE e.source_seq = :source_seq AND e.dependant_seq > :reached)
    ON CONFLICT (source_seq, members) DO UPDATE SET reached = excluded.reached RETURNING source_seq;
