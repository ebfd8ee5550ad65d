-- limits: count what runs against limits, and move the jobs that a full limit holds back to blocked queues.

-- name: classes_waiting
-- The classes with waiting jobs that are on the ladder, or outside the lanes of a reserve.
-- params  namespace_id, ladder, lanes
SELECT c.class_id FROM class c
 WHERE c.namespace_id = :namespace_id
   AND ((:ladder AND c.rung <> '') OR (:lanes IS NOT NULL AND c.lane NOT IN (SELECT value FROM json_each(:lanes))))
   AND EXISTS (SELECT 1 FROM ready r WHERE r.class_id = c.class_id AND r.park = '')
 ORDER BY c.lane, c.needs, c.rung;

-- name: job_set_blocked_by
-- Record in which blocked queue a job waits.
-- params  blocked_by, seq
UPDATE job SET park = :blocked_by WHERE seq = :seq;

-- name: lease_set_limits
-- Note anew which limits a lease counts against.
-- params  seq, held
UPDATE lease SET held = :held WHERE seq = :seq;

-- name: set_aside
-- Whether the namespace has a blocked queue, one is open in any namespace, and edges of the namespace are unsettled.
-- params  namespace_id
SELECT EXISTS (SELECT 1 FROM park WHERE namespace_id = :namespace_id),
       EXISTS (SELECT 1 FROM park INDEXED BY park_open WHERE open = 1),
       EXISTS (SELECT 1 FROM unsettled WHERE namespace_id = :namespace_id);

-- name: blocked_open_due
-- Open the blocked queues whose rate lets another job start.
-- params  namespace_id, now_at
UPDATE park SET open = 1, open_at = NULL WHERE namespace_id = :namespace_id AND open_at <= :now_at;

-- name: blocked_delete_empty
-- Delete the empty ones of these blocked queues.
-- params  namespace_id, blocked_keys, class_id
DELETE FROM park WHERE namespace_id = :namespace_id AND park IN (SELECT value FROM json_each(:blocked_keys))
   AND class_id = :class_id
   AND NOT EXISTS (SELECT 1 FROM ready r WHERE r.class_id = :class_id AND r.park = park.park);

-- name: blocked_put_head
-- Record which job of a blocked queue is first now, as a claim has found it.
-- params  head_key, head_seq, namespace_id, blocked_by, class_id
UPDATE park SET head_key = :head_key, head_seq = :head_seq
 WHERE namespace_id = :namespace_id AND park = :blocked_by AND class_id = :class_id;

-- name: blocked_set_head
-- Record which job of a blocked queue is first now.
-- params  class_id, blocked_by, namespace_id
UPDATE park SET (head_key, head_seq) =
       (SELECT order_key, seq FROM ready WHERE class_id = :class_id AND park = :blocked_by
         ORDER BY order_key, seq LIMIT 1)
 WHERE namespace_id = :namespace_id AND park = :blocked_by AND class_id = :class_id
   AND EXISTS (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :blocked_by);

-- name: blocked_move
-- Move a waiting job to a blocked queue.
-- params  to, now_at, class_id, blocked_by, order_key, seq
UPDATE ready SET park = :to, parked_at = ifnull(parked_at, :now_at)
 WHERE class_id = :class_id AND park = :blocked_by AND order_key = :order_key AND seq = :seq;

-- name: blocked_open_all
-- The rules are new: let all that was put aside try again.
-- params  namespace_id
UPDATE park SET open = 1, open_at = NULL WHERE namespace_id = :namespace_id;

-- name: blocked_release
-- Open the blocked queues of the keys that leases have released.
-- params  namespace_id, blocked_keys
UPDATE park SET open = 1 WHERE namespace_id = :namespace_id AND park IN (SELECT value FROM json_each(:blocked_keys))
   AND open = 0 AND open_at IS NULL
RETURNING class_id;

-- name: blocked_close
-- Close a blocked queue, which may be new, until a moment or until a lease releases its key. Record its first job.
-- params  namespace_id, blocked_by, class_id, open_at
INSERT INTO park (namespace_id, park, class_id, open, open_at, head_key, head_seq)
SELECT :namespace_id, :blocked_by, :class_id, 0, :open_at, r.order_key, r.seq
  FROM ready r WHERE r.class_id = :class_id AND r.park = :blocked_by ORDER BY r.order_key, r.seq LIMIT 1
    ON CONFLICT DO UPDATE SET open = 0, open_at = excluded.open_at, head_key = excluded.head_key,
                              head_seq = excluded.head_seq;

-- name: rate
-- How far ahead the starts of these rates were given away.
-- params  namespace_id, rate_keys
SELECT rate_key, reached_us FROM rate WHERE namespace_id = :namespace_id
   AND rate_key IN (SELECT value FROM json_each(:rate_keys));

-- name: rate_step
-- Note how far ahead they are given away now.
-- params  namespace_id, rate_key, reached_us
INSERT OR REPLACE INTO rate (namespace_id, rate_key, reached_us) VALUES (:namespace_id, :rate_key, :reached_us);

-- name: running
-- What a limit is counted by, for each job that runs.
-- params  namespace_id
SELECT l.seq, j.task, j.tenant, j.limits FROM lease l CROSS JOIN job j ON j.seq = l.seq
 WHERE j.namespace_id = :namespace_id;

-- name: running_rungs
-- The jobs that run, with the rung each asked for and was given.
-- params  namespace_id
SELECT j.job_id, c.rung, l.assigned, l.started_at FROM lease l CROSS JOIN class c ON c.class_id = l.class_id
  CROSS JOIN job j ON j.seq = l.seq
 WHERE c.namespace_id = :namespace_id ORDER BY l.seq;

-- name: limit_usage
-- How many leases count against which limits.
-- params  namespace_id
SELECT l.held, count(*) AS count FROM lease l JOIN class c ON c.class_id = l.class_id
 WHERE c.namespace_id = :namespace_id AND l.held IS NOT NULL GROUP BY l.held;

-- name: running_lanes
-- How many jobs run in each lane.
-- params  namespace_id
SELECT c.lane, count(*) AS count FROM lease l JOIN class c ON c.class_id = l.class_id
 WHERE c.namespace_id = :namespace_id GROUP BY c.lane;

-- name: live_slots
-- The slots of the workers that take jobs.
-- params  namespace_id, now_at
SELECT coalesce(sum(slots), 0) FROM worker WHERE namespace_id = :namespace_id AND state = 'active'
   AND lease_ends_at > :now_at;
