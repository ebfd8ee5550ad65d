-- prune_expiry: the queued jobs that have expired.
-- params  namespace_id, now_at, limit
DELETE FROM expiry WHERE (namespace_id, expires_at, seq) IN
  (SELECT namespace_id, expires_at, seq FROM expiry WHERE namespace_id = :namespace_id AND expires_at <= :now_at
    ORDER BY expires_at, seq LIMIT :limit)
RETURNING seq;
