-- claim_leases: lease jobs of one class and remove them from where they wait.
-- params  class_id, worker_id, token, now_at, seqs, order_keys, parks, eligible_ats, epochs, attempts, crashes, timeouts, unique_keys, tenants, held, assigned, parked_for, parked_ms
-- holds   their rows in ready are locked by claim_head
WITH x AS MATERIALIZED (
  SELECT * FROM unnest(:seqs::bigint[], :order_keys::bigint[], :parks::text[], :eligible_ats::bigint[], :epochs::int[], :attempts::int[],
                       :crashes::int[], :timeouts::bigint[], :unique_keys::text[], :tenants::text[], :held::text[], :assigned::text[],
                       :parked_for::text[], :parked_ms::bigint[])
    AS x (seq, order_key, park, eligible_at, epoch, attempts, crashes, timeout_ms, unique_key, tenant, held, assigned, parked_for, parked_ms)),
gone AS (DELETE FROM {schema}.ready r USING x WHERE r.class_id = :class_id AND r.park = x.park AND r.order_key = x.order_key AND r.seq = x.seq)
INSERT INTO {schema}.lease (seq, order_key, started_at, eligible_at, timeout_ms, parked_ms, class_id, epoch, attempts, crashes, token, worker_id,
                            tenant, unique_key, held, assigned, parked_for)
SELECT x.seq, x.order_key, :now_at, x.eligible_at, x.timeout_ms, x.parked_ms, :class_id, x.epoch, x.attempts, x.crashes, :token, :worker_id,
       x.tenant, x.unique_key, x.held, x.assigned, x.parked_for FROM x;
