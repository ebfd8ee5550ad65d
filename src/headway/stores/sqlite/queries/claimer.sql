-- claimer: what a claim must know of its worker, and how many leases it holds.
-- params  worker_id, namespace_id
SELECT state, lease_ends_at, slots, claim_id, waiting, wait_lanes, (SELECT count(*) FROM lease l WHERE l.worker_id = w.worker_id) AS running
  FROM worker w WHERE w.worker_id = :worker_id AND w.namespace_id = :namespace_id;
