-- due: take out the delayed jobs that have fallen due, earliest first.
-- params  namespace_id, now_at, limit
WITH d AS (
  DELETE FROM {schema}.delayed WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.delayed WHERE namespace_id = :namespace_id AND due_at <= :now_at
     ORDER BY namespace_id, due_at, seq LIMIT :limit FOR UPDATE SKIP LOCKED))
  RETURNING *)
SELECT d.seq, d.class_id, j.task, j.tenant, j.expires_at, j.unique_key, d.epoch, d.attempts, d.crashes, d.timeout_ms, d.token, d.error, d.reason
  FROM d JOIN {schema}.job j ON j.seq = d.seq ORDER BY d.due_at, d.seq;
