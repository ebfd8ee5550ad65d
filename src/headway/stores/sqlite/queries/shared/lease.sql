-- lease: a leased job with all that its worker is told.
SELECT j.job_id, l.seq, l.token, j.task, j.payload, c.lane, j.tenant, j.trace_id, l.epoch, l.attempts, l.crashes, j.max_retries,
       l.timeout_ms, j.timeout_ms AS asked_timeout_ms, j.retry, l.started_at, l.cancel_at, c.needs, l.worker_id,
       c.rung, l.assigned, j.submitted_at, l.eligible_at
  FROM lease l CROSS JOIN job j ON j.seq = l.seq JOIN class c ON c.class_id = l.class_id
