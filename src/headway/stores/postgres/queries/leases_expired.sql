-- leases_expired: the leases whose worker let its deadline pass, died, or was forgotten.
-- params  namespace_id, now_at, limit
-- use lease
  LEFT JOIN {schema}.worker w ON w.worker_id = l.worker_id
 WHERE j.namespace_id = :namespace_id AND (w.worker_id IS NULL OR w.state = 'dead' OR w.lease_ends_at <= :now_at)
 ORDER BY l.seq LIMIT :limit;
