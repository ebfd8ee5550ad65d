-- claim_lease: lease the front of a line, up to and with the last job taken.
-- params  worker_id, token, started_at, class_id, park, order_key, seq
-- holds   one writer at a time, so what was read is still the front
INSERT INTO lease (seq, class_id, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms, unique_key,
                   order_key, tenant)
SELECT r.seq, r.class_id, :worker_id, :token, :started_at, r.eligible_at, r.epoch + 1, r.attempts + 1, r.crashes,
       ifnull(r.timeout_ms, j.timeout_ms), j.unique_key, r.order_key, r.tenant
  FROM ready r CROSS JOIN job j ON j.seq = r.seq
 WHERE r.class_id = :class_id AND r.park = :park AND (r.order_key, r.seq) <= (:order_key, :seq);
