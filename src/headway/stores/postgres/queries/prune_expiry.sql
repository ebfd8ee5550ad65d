-- prune_expiry: the jobs that have expired. Those executing are left for later: they may come back to the queue.
-- params  namespace_id, now_at, limit
DELETE FROM {schema}.expiry WHERE ctid = ANY (ARRAY(
  SELECT e.ctid FROM {schema}.expiry e WHERE e.namespace_id = :namespace_id AND e.expires_at <= :now_at
     AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.seq = e.seq)
   ORDER BY e.namespace_id, e.expires_at, e.seq LIMIT :limit FOR UPDATE SKIP LOCKED))
RETURNING seq;
