-- claim_head: the line of a class from some place on, with all that a lease tells its worker.
-- params  class_id, park, order_key, seq, count
-- gives   rows in order
SELECT r.ctid::text AS spot, r.order_key, r.seq, r.eligible_at, r.epoch, r.attempts, r.crashes, r.timeout_ms AS grown_timeout_ms, j.job_id, j.task, j.payload,
       j.tenant, j.trace_id, j.max_retries, j.timeout_ms, j.retry, r.expires_at, r.unique_key, j.limits, r.tenant AS sharer, r.parked_at, j.submitted_at
  FROM {schema}.ready r JOIN {schema}.job j ON j.seq = r.seq
 WHERE r.class_id = :class_id AND r.park = :park AND (r.order_key, r.seq) > (:order_key, :seq)
 ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT :count FOR UPDATE OF r SKIP LOCKED;
