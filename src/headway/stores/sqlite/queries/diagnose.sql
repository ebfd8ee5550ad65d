-- diagnose: explain why a job waits, and sample what classes wait for.

-- name: ahead
-- How many jobs of a line go before a place, counted up to a bound.
-- params  class_id, blocked_by, order_key, seq, bound
SELECT count(*) FROM (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :blocked_by
                         AND (order_key, seq) < (:order_key, :seq) LIMIT :bound);

-- name: ahead_own
-- How many jobs of one tenant go before a place in a line, counted up to a bound.
-- params  class_id, tenant, order_key, seq, blocked_by, bound
SELECT count(*) FROM (
  SELECT 1 FROM tenant_line t
   WHERE :blocked_by = '' AND t.class_id = :class_id AND t.tenant = :tenant
     AND (t.order_key, t.seq) < (:order_key, :seq)
     AND (t.order_key, t.seq) >= (SELECT order_key, seq FROM ready WHERE class_id = :class_id AND park = ''
                                   ORDER BY order_key, seq LIMIT 1)
     AND EXISTS (SELECT 1 FROM ready r WHERE r.class_id = :class_id AND r.park = ''
                    AND r.order_key = t.order_key AND r.seq = t.seq)
   UNION ALL
  SELECT 1 FROM ready b INDEXED BY ready_blocked
   WHERE b.class_id = :class_id AND b.tenant = :tenant AND b.tenant IS NOT NULL
     AND b.park = :blocked_by AND b.park <> '' AND (b.order_key, b.seq) < (:order_key, :seq)
   LIMIT :bound);

-- name: executing
-- The jobs that run, as far as those that wait are concerned.
-- params  namespace_id
SELECT j.task, c.lane, l.worker_id, l.started_at, l.held FROM lease l CROSS JOIN class c ON c.class_id = l.class_id
 CROSS JOIN job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id ORDER BY l.seq;

-- name: stretch_put
-- A stretch goes on, or begins.
-- params  class_id, from_at, until_at, reason
INSERT OR REPLACE INTO stretch (class_id, from_at, until_at, reason) VALUES (:class_id, :from_at, :until_at, :reason);
