-- due: the delayed jobs that have fallen due, earliest first.
-- params  namespace_id, now_at, limit
SELECT due_at, seq, class_id, epoch, attempts, crashes, timeout_ms, token, error, reason FROM delayed
 WHERE namespace_id = :namespace_id AND due_at <= :now_at ORDER BY due_at, seq LIMIT :limit;
