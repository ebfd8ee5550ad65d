-- waiting: a waiting job with all that a lease tells its worker.
SELECT r.order_key, r.seq, r.eligible_at, r.epoch, r.attempts, r.crashes, ifnull(r.timeout_ms, j.timeout_ms) AS timeout_ms,
       j.job_id, j.task, j.payload, j.tenant, j.trace_id, j.max_retries, j.timeout_ms AS asked_timeout_ms, j.retry, j.expires_at,
       j.limits, r.tenant AS sharer, r.parked_at, j.submitted_at
  FROM ready r CROSS JOIN job j ON j.seq = r.seq
