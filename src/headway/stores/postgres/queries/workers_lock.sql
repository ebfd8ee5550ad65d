-- workers_lock: lock the workers whose leases a batch of reports may end, and the one that asks, in one order.
-- params  seqs, worker_id
SELECT w.worker_id, w.state, w.lease_ends_at FROM {schema}.worker w
 WHERE w.worker_id IN (SELECT l.worker_id FROM {schema}.lease l WHERE l.seq = ANY (:seqs::bigint[])) OR w.worker_id = :worker_id
 ORDER BY w.worker_id FOR NO KEY UPDATE;
