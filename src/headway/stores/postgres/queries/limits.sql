-- limits: count what runs against limits, and move the jobs that a full limit holds back to blocked queues.

-- name: classes_waiting
-- The classes with waiting jobs that are on the ladder, or outside the lanes of a reserve.
-- params  namespace_id, ladder, lanes
SELECT c.class_id FROM {schema}.class c
 WHERE c.namespace_id = :namespace_id AND c.persist
   AND ((:ladder AND c.rung <> '') OR (:lanes::text[] IS NOT NULL AND c.lane <> ALL (:lanes)))
   AND EXISTS (SELECT FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.park = '')
 ORDER BY c.lane, c.needs, c.rung;

-- name: lease_set_limits
-- Note anew which limits leases count against.
-- params  seqs, held
UPDATE {schema}.lease l SET held = x.held FROM unnest(:seqs::bigint[], :held::text[]) x (seq, held) WHERE l.seq = x.seq;

-- name: blocked_open_due
-- Open the blocked queues whose rate lets another job start.
-- params  namespace_id, now_at
UPDATE {schema}.park SET open = true, open_at = NULL WHERE namespace_id = :namespace_id AND open_at <= :now_at;

-- name: blocked_first
-- The open blocked queue of a class whose first job is next.
-- params  class_id
SELECT park, head_key, head_seq FROM {schema}.park WHERE class_id = :class_id AND open
 ORDER BY head_key, head_seq LIMIT 1;

-- name: blocked_update
-- Record which job of a blocked queue is first now, or delete the queue if it is empty.
-- params  namespace_id, blocked_by, class_id
WITH head AS (SELECT order_key, seq FROM {schema}.ready WHERE class_id = :class_id AND park = :blocked_by
               ORDER BY class_id, park, order_key, seq LIMIT 1),
moved AS (UPDATE {schema}.park p SET head_key = head.order_key, head_seq = head.seq FROM head
           WHERE p.namespace_id = :namespace_id AND p.park = :blocked_by AND p.class_id = :class_id)
DELETE FROM {schema}.park p WHERE p.namespace_id = :namespace_id AND p.park = :blocked_by AND p.class_id = :class_id
   AND NOT EXISTS (SELECT FROM head);

-- name: blocked_move
-- Move a waiting job to a blocked queue.
-- params  to, now_at, class_id, blocked_by, order_key, seq
WITH placed AS (UPDATE {schema}.job SET park = :to WHERE seq = :seq)
UPDATE {schema}.ready SET park = :to, parked_at = coalesce(parked_at, :now_at)
 WHERE class_id = :class_id AND park = :blocked_by AND order_key = :order_key AND seq = :seq;

-- name: blocked_open_all
-- The rules are new: let all that was put aside try again.
-- params  namespace_id
UPDATE {schema}.park SET open = true, open_at = NULL WHERE namespace_id = :namespace_id;

-- name: blocked_add
-- Record that one more job waits for a key without room, and close its blocked queue.
-- params  namespace_id, blocked_by, class_id, open_at, head_key, head_seq
INSERT INTO {schema}.park AS p (namespace_id, park, class_id, open, open_at, head_key, head_seq)
VALUES (:namespace_id, :blocked_by, :class_id, false, :open_at, :head_key, :head_seq)
    ON CONFLICT (namespace_id, park, class_id) DO UPDATE SET open = false, open_at = excluded.open_at,
       head_key = CASE WHEN (excluded.head_key, excluded.head_seq) < (p.head_key, p.head_seq) THEN excluded.head_key
           ELSE p.head_key END,
       head_seq = CASE WHEN (excluded.head_key, excluded.head_seq) < (p.head_key, p.head_seq) THEN excluded.head_seq
           ELSE p.head_seq END;

-- name: blocked_release
-- Open the blocked queues of a key that a lease has released.
-- params  namespace_id, blocked_by
UPDATE {schema}.park SET open = true WHERE namespace_id = :namespace_id AND park = :blocked_by AND NOT open
   AND open_at IS NULL RETURNING class_id;

-- name: blocked_close
-- Close a blocked queue until a moment, or until a lease releases its key.
-- params  open_at, namespace_id, blocked_by, class_id
UPDATE {schema}.park SET open = false, open_at = :open_at
 WHERE namespace_id = :namespace_id AND park = :blocked_by AND class_id = :class_id;

-- name: rate
-- How far ahead the starts of these rates were given away.
-- params  namespace_id, rate_keys
SELECT rate_key, reached_us FROM {schema}.rate WHERE namespace_id = :namespace_id
   AND rate_key = ANY (:rate_keys::text[]);

-- name: rate_step
-- Note how far ahead rates are given away now.
-- params  namespace_id, rate_keys, reached_us
INSERT INTO {schema}.rate (namespace_id, rate_key, reached_us)
SELECT :namespace_id, x.rate_key, x.reached_us
  FROM unnest(:rate_keys::text[], :reached_us::bigint[]) x (rate_key, reached_us)
    ON CONFLICT (namespace_id, rate_key) DO UPDATE SET reached_us = excluded.reached_us;

-- name: running
-- What a limit is counted by, for each job that runs.
-- params  namespace_id
SELECT l.seq, j.task, j.tenant, j.limits FROM {schema}.lease l JOIN {schema}.job j ON j.seq = l.seq
 WHERE j.namespace_id = :namespace_id;

-- name: running_rungs
-- The jobs that run, with the rung each asked for and was given.
-- params  namespace_id
SELECT j.job_id, c.rung, l.assigned, l.started_at FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
  JOIN {schema}.job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id ORDER BY l.seq;
