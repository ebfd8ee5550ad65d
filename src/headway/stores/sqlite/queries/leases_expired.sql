-- leases_expired: the leases whose worker let its deadline pass, died, or was forgotten.
-- params  namespace_id, now_at, limit
SELECT j.job_id, l.seq, l.token, j.task, j.payload, c.lane, j.tenant, j.trace_id, l.epoch, l.attempts, l.crashes, j.max_retries,
       l.timeout_ms, j.timeout_ms AS asked_timeout_ms, j.retry, l.started_at, l.cancel_at, c.needs, l.worker_id
  FROM lease l CROSS JOIN job j ON j.seq = l.seq JOIN class c ON c.class_id = l.class_id
  LEFT JOIN worker w ON w.worker_id = l.worker_id
 WHERE j.namespace_id = :namespace_id AND (w.worker_id IS NULL OR w.state = 'dead' OR w.lease_ends_at <= :now_at)
 ORDER BY l.seq LIMIT :limit;
