-- leases_of: the leases a worker holds.
-- params  worker_id, namespace_id, limit
-- plan    as leases_expired
WITH held AS MATERIALIZED (
  SELECT l.* FROM {schema}.lease l JOIN {schema}.class k ON k.class_id = l.class_id
   WHERE l.worker_id = :worker_id AND k.namespace_id = :namespace_id ORDER BY l.seq LIMIT :limit)
-- use held
 ORDER BY l.seq;
