-- diagnose: explain why a job waits, and sample what classes wait for.

-- name: ahead
-- How many jobs of a line go before a place, counted up to a bound.
-- params  class_id, blocked_by, order_key, seq, bound
SELECT count(*) FROM (SELECT 1 FROM ready WHERE class_id = :class_id AND park = :blocked_by
                         AND (order_key, seq) < (:order_key, :seq) LIMIT :bound);

-- name: ahead_own
-- How many jobs of one tenant go before a place in a line, counted up to a bound.
-- params  class_id, tenant, order_key, seq, blocked_by, bound
SELECT count(*) FROM (SELECT 1 FROM ready WHERE class_id = :class_id AND tenant = :tenant
                         AND (order_key, seq) < (:order_key, :seq)
                         AND park = :blocked_by LIMIT :bound);

-- name: executing
-- The jobs that run, as far as those that wait are concerned.
-- params  namespace_id
SELECT j.task, c.lane, l.worker_id, l.started_at, l.held FROM lease l CROSS JOIN class c ON c.class_id = l.class_id
 CROSS JOIN job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id ORDER BY l.seq;

-- name: stretch_put
-- A stretch goes on, or begins.
-- params  class_id, from_at, until_at, reason
INSERT OR REPLACE INTO stretch (class_id, from_at, until_at, reason) VALUES (:class_id, :from_at, :until_at, :reason);
