-- limits: count what runs against limits, and park the jobs that a full limit holds back.

-- name: classes_waiting
-- The classes with waiting jobs that are on the ladder, or outside the lanes of a reserve.
-- params  namespace_id, ladder, lanes
SELECT c.class_id FROM class c
 WHERE c.namespace_id = :namespace_id
   AND ((:ladder AND c.rung <> '') OR (:lanes IS NOT NULL AND c.lane NOT IN (SELECT value FROM json_each(:lanes))))
   AND EXISTS (SELECT 1 FROM ready r WHERE r.class_id = c.class_id AND r.park = '')
 ORDER BY c.lane, c.needs, c.rung;

-- name: job_set_park
-- Note in which park a job waits.
-- params  park, seq
UPDATE job SET park = :park WHERE seq = :seq;

-- name: lease_set_limits
-- Note anew which limits a lease counts against.
-- params  seq, held
UPDATE lease SET held = :held WHERE seq = :seq;

-- name: park_any
-- Whether anything is parked here, and whether any park is open; those of other namespaces cost a look, no more.
-- params  namespace_id
SELECT 1, (SELECT 1 FROM park INDEXED BY park_open WHERE open = 1 LIMIT 1) FROM park
 WHERE namespace_id = :namespace_id LIMIT 1;

-- name: park_due
-- Open the parks whose rate lets another job start.
-- params  namespace_id, now_at
UPDATE park SET open = 1, open_at = NULL WHERE namespace_id = :namespace_id AND open_at <= :now_at;

-- name: park_empty
-- Forget a park in which nothing waits.
-- params  namespace_id, park, class_id
DELETE FROM park WHERE namespace_id = :namespace_id AND park = :park AND class_id = :class_id
   AND NOT EXISTS (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :park);

-- name: park_first
-- The open park of a class whose first job is next.
-- params  class_id
SELECT park, head_key, head_seq FROM park WHERE class_id = :class_id AND open = 1 ORDER BY head_key, head_seq LIMIT 1;

-- name: park_head
-- Note which job of a park is now the first.
-- params  class_id, park, namespace_id
UPDATE park SET (head_key, head_seq) =
       (SELECT order_key, seq FROM ready WHERE class_id = :class_id AND park = :park ORDER BY order_key, seq LIMIT 1)
 WHERE namespace_id = :namespace_id AND park = :park AND class_id = :class_id
   AND EXISTS (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :park);

-- name: park_move
-- Move a waiting job to a park.
-- params  to, now_at, class_id, park, order_key, seq
UPDATE ready SET park = :to, parked_at = ifnull(parked_at, :now_at)
 WHERE class_id = :class_id AND park = :park AND order_key = :order_key AND seq = :seq;

-- name: park_open_all
-- The rules are new: let all that was put aside try again.
-- params  namespace_id
UPDATE park SET open = 1, open_at = NULL WHERE namespace_id = :namespace_id;

-- name: park_put
-- Let one more job wait for a key; there is no room, so the park is shut.
-- params  namespace_id, park, class_id, open_at, head_key, head_seq
INSERT INTO park (namespace_id, park, class_id, open, open_at, head_key, head_seq)
VALUES (:namespace_id, :park, :class_id, 0, :open_at, :head_key, :head_seq)
    ON CONFLICT DO UPDATE SET open = 0, open_at = excluded.open_at;

-- name: park_release
-- A key was given back: the parks that wait for that open.
-- params  namespace_id, park
UPDATE park SET open = 1 WHERE namespace_id = :namespace_id AND park = :park AND open = 0 AND open_at IS NULL
RETURNING class_id;

-- name: park_shut
-- A park has no room, until a moment or until its key is given back.
-- params  open_at, namespace_id, park, class_id
UPDATE park SET open = 0, open_at = :open_at WHERE namespace_id = :namespace_id AND park = :park
   AND class_id = :class_id;

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
