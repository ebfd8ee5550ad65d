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
-- Note anew which limits leases count against. Sessions count at the shortest rung.
-- params  seqs, limit_keys, rungs, uncounted_lanes
UPDATE {schema}.lease l SET limit_keys = nullif(
         ARRAY(SELECT json_array_elements_text(x.limit_keys::json))
         || CASE WHEN c.rung = 'interactive' AND cardinality(:rungs::text[]) > 0 THEN ARRAY['=rung:' || (:rungs)[1]]
                 WHEN l.assigned = ANY (:rungs) THEN ARRAY['=rung:' || l.assigned] ELSE '{}' END
         || CASE WHEN c.lane <> ALL (:uncounted_lanes::text[]) THEN ARRAY['=pool'] ELSE '{}' END, '{}')
  FROM unnest(:seqs::bigint[], :limit_keys::text[]) x (seq, limit_keys), {schema}.class c
 WHERE l.seq = x.seq AND c.class_id = l.class_id;

-- name: lease_set_rung
-- Give a running job another rung.
-- params  assigned, seq
WITH old AS (SELECT c.namespace_id, l.assigned, l.limit_keys FROM {schema}.lease l
               JOIN {schema}.class c ON c.class_id = l.class_id WHERE l.seq = :seq),
changed AS (UPDATE {schema}.lease l SET assigned = :assigned::text,
                   limit_keys = array_replace(l.limit_keys, '=rung:' || l.assigned, '=rung:' || :assigned)
             WHERE l.seq = :seq)
SELECT {schema}.count_usage_{version}(old.namespace_id, ARRAY['=rung:' || old.assigned, '=rung:' || :assigned],
                                      ARRAY[-1, 1])
  FROM old WHERE '=rung:' || old.assigned = ANY (old.limit_keys);

-- name: limit_usage_clear
-- Forget how many leases count against limits.
-- params  namespace_id
DELETE FROM {schema}.limit_usage WHERE namespace_id = :namespace_id;

-- name: limit_usage_fill
-- Count how many leases count against each limit.
-- params  namespace_id
INSERT INTO {schema}.limit_usage (namespace_id, limit_key, count)
SELECT c.namespace_id, k.key, count(*) FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
 CROSS JOIN LATERAL unnest(l.limit_keys) k (key) WHERE c.namespace_id = :namespace_id GROUP BY c.namespace_id, k.key;

-- name: blocked_open_due
-- Open the blocked queues whose rate lets another job start.
-- params  namespace_id, now_at
UPDATE {schema}.park SET open = true, open_at = NULL WHERE namespace_id = :namespace_id AND open_at <= :now_at;

-- name: blocked_update
-- Record which job of a blocked queue is first now, or delete the queue if it is empty.
-- params  namespace_id, blocked_by, class_id
WITH head AS (SELECT order_key, seq FROM {schema}.ready WHERE class_id = :class_id AND park = :blocked_by
               ORDER BY class_id, park, order_key, seq LIMIT 1),
moved AS (UPDATE {schema}.park p SET head_key = head.order_key, head_seq = head.seq FROM head
           WHERE p.namespace_id = :namespace_id AND p.park = :blocked_by AND p.class_id = :class_id)
DELETE FROM {schema}.park p WHERE p.namespace_id = :namespace_id AND p.park = :blocked_by AND p.class_id = :class_id
   AND NOT EXISTS (SELECT FROM head);

-- name: blocked_open_all
-- The rules are new: let all that was put aside try again.
-- params  namespace_id
UPDATE {schema}.park SET open = true, open_at = NULL WHERE namespace_id = :namespace_id;

-- name: blocked_release
-- Open the blocked queues of the keys that leases have released.
-- params  namespace_id, blocked_keys
UPDATE {schema}.park SET open = true WHERE namespace_id = :namespace_id AND park = ANY (:blocked_keys::text[])
   AND NOT open AND open_at IS NULL RETURNING class_id;

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
