-- leases_expired: the leases whose worker let its deadline pass, died, or was forgotten.
-- params  thorough, now_at, namespace_id, limit
-- plan    looks at leases only if there is such a worker and it holds any by its own count: to find that none is overdue would mean to
--         walk over the dead rows of all that have ended. Now and then it looks whatever the count says (thorough). Leases come first and
--         by themselves: without statistics the server would begin with all jobs
WITH held AS MATERIALIZED (
  SELECT l.* FROM {schema}.lease l JOIN {schema}.class k ON k.class_id = l.class_id LEFT JOIN {schema}.worker w ON w.worker_id = l.worker_id
   WHERE (SELECT EXISTS (SELECT FROM {schema}.worker x WHERE x.lease_ends_at <= :now_at AND x.state <> 'dead'
                            OR (x.state = 'dead' OR x.lease_ends_at <= :now_at) AND (x.running > 0 OR :thorough::boolean)))
     AND k.namespace_id = :namespace_id AND (w.worker_id IS NULL OR w.state = 'dead' OR w.lease_ends_at <= :now_at)
   ORDER BY l.seq LIMIT :limit)
-- use held
 ORDER BY l.seq;
