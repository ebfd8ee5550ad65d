-- prune_expiry: the jobs that have expired. Those executing are left for later: they may come back to the queue.
-- params  namespace_id, now_at, limit
DELETE FROM expiry WHERE (namespace_id, expires_at, seq) IN
  (SELECT namespace_id, expires_at, seq FROM expiry e WHERE namespace_id = :namespace_id AND expires_at <= :now_at
      AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.seq = e.seq)
    ORDER BY expires_at, seq LIMIT :limit)
RETURNING seq;
