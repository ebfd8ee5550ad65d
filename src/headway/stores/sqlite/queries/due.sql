-- due: the delayed jobs that have fallen due, earliest first.
-- params  namespace_id, now_at, limit
SELECT d.due_at, d.seq, d.class_id, j.task, j.tenant, d.epoch, d.attempts, d.crashes, d.timeout_ms, d.token, d.error, d.reason
  FROM delayed d CROSS JOIN job j ON j.seq = d.seq
 WHERE d.namespace_id = :namespace_id AND d.due_at <= :now_at ORDER BY d.due_at, d.seq LIMIT :limit;
