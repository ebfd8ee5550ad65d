-- leases_expired: the leases whose worker let its deadline pass, died, or was forgotten.
-- params  namespace_id, now_at, limit
-- plan    looks at leases only if there is such a worker: to find that none is overdue would mean to walk over the dead rows of all that
--         have ended. A worker is forgotten only once it holds none
-- use lease
  LEFT JOIN {schema}.worker w ON w.worker_id = l.worker_id
 WHERE (SELECT EXISTS (SELECT FROM {schema}.worker x WHERE x.state = 'dead' OR x.lease_ends_at <= :now_at))
   AND j.namespace_id = :namespace_id AND (w.worker_id IS NULL OR w.state = 'dead' OR w.lease_ends_at <= :now_at)
 ORDER BY l.seq LIMIT :limit;
