-- claim_leases: lease jobs of one class and remove them from where they wait.
-- params  worker_id, token, now_at, spots, seqs, held, assigned, parked_for, parked_ms
-- holds   their rows in ready are locked by claim_head, so that they are still where it found them
WITH c AS (DELETE FROM {schema}.ready WHERE ctid = ANY (:spots::text[]::tid[]) RETURNING *)
INSERT INTO {schema}.lease (seq, order_key, started_at, eligible_at, timeout_ms, parked_ms, class_id, epoch, attempts, crashes, token, worker_id,
                            tenant, unique_key, held, assigned, parked_for)
SELECT c.seq, c.order_key, :now_at, c.eligible_at, c.timeout_ms, x.parked_ms, c.class_id, c.epoch + 1, c.attempts + 1, c.crashes, :token, :worker_id,
       c.tenant, c.unique_key, x.held, x.assigned, x.parked_for
  FROM c JOIN unnest(:seqs::bigint[], :held::text[], :assigned::text[], :parked_for::text[], :parked_ms::bigint[])
              AS x (seq, held, assigned, parked_for, parked_ms) ON x.seq = c.seq;
