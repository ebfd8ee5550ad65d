-- leases_of: the leases a worker holds.
-- params  worker_id, namespace_id, limit
-- use lease
 WHERE l.worker_id = :worker_id AND j.namespace_id = :namespace_id ORDER BY l.seq LIMIT :limit;
