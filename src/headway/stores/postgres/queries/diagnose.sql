-- diagnose: explain why a job waits, and sample what classes wait for.

-- name: ahead
-- How many jobs of a line go before a place, counted up to a bound.
-- params  class_id, blocked_by, order_key, seq, bound
SELECT count(*) FROM (SELECT FROM {schema}.ready WHERE class_id = :class_id AND park = :blocked_by
                         AND (order_key, seq) < (:order_key, :seq) LIMIT :bound) x;

-- name: ahead_own
-- How many jobs of one tenant go before a place in a line, counted up to a bound.
-- params  class_id, tenant, order_key, seq, blocked_by, bound
SELECT count(*) FROM (SELECT FROM {schema}.ready WHERE class_id = :class_id AND tenant = :tenant
                         AND (order_key, seq) < (:order_key, :seq)
                         AND park = :blocked_by LIMIT :bound) x;

-- name: executing
-- The jobs that run, as far as those that wait are concerned.
-- params  namespace_id, from_seq
-- plan    walks lease by its primary key from that number on: rows that are gone lie before it
SELECT j.task, c.lane, l.worker_id, l.started_at, l.limit_keys, l.seq FROM {schema}.lease l
  JOIN {schema}.class c ON c.class_id = l.class_id
  JOIN {schema}.job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id AND l.seq >= :from_seq ORDER BY l.seq;

-- name: stretch_put
-- A stretch goes on, or begins.
-- params  class_id, from_at, until_at, reason
INSERT INTO {schema}.stretch (class_id, from_at, until_at, reason) VALUES (:class_id, :from_at, :until_at, :reason)
    ON CONFLICT (class_id, from_at) DO UPDATE SET until_at = excluded.until_at, reason = excluded.reason;
