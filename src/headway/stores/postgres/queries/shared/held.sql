-- held: leased jobs with all that their worker is told; held are the leases.
SELECT j.job_id, l.seq, l.token, j.task, j.payload, c.lane, j.tenant, j.trace_id, l.epoch, l.attempts, l.crashes, j.max_retries,
       coalesce(l.timeout_ms, j.timeout_ms) AS timeout_ms, j.timeout_ms AS asked_timeout_ms, j.retry, l.started_at, l.cancel_at,
       c.needs, l.worker_id, c.rung, l.assigned, j.submitted_at, l.eligible_at
  FROM held l JOIN {schema}.job j ON j.seq = l.seq JOIN {schema}.class c ON c.class_id = l.class_id
