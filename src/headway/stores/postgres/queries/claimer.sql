-- claimer: what a claim must know of its worker, which is locked until the end.
-- params  worker_id, namespace_id
SELECT state, lease_ends_at, slots, claim_id, waiting IS NOT NULL AS waiting, wait_lanes, running
  FROM {schema}.worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id FOR NO KEY UPDATE;
