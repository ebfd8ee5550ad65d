-- claim_lease: lease one job.
-- params  seq, class_id, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms, unique_key, order_key, tenant, held, assigned, parked_for, parked_ms
INSERT INTO lease (seq, class_id, worker_id, token, started_at, eligible_at, epoch, attempts, crashes, timeout_ms, unique_key,
                   order_key, tenant, held, assigned, parked_for, parked_ms)
VALUES (:seq, :class_id, :worker_id, :token, :started_at, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms, :unique_key,
        :order_key, :tenant, :held, :assigned, :parked_for, :parked_ms);
