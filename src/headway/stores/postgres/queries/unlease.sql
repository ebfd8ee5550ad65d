-- unlease: end leases; their workers hold so many less.
-- params  seqs
WITH gone AS (DELETE FROM {schema}.lease WHERE seq = ANY (:seqs::bigint[]) RETURNING worker_id)
UPDATE {schema}.worker w SET running = w.running - x.count FROM (SELECT worker_id, count(*) AS count FROM gone GROUP BY worker_id) x
 WHERE w.worker_id = x.worker_id;
