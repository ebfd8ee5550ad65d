-- known_key: the job that an idempotency key stands for, while it is remembered.
-- params  namespace_id, tenant, idempotency_key, now_at
SELECT job_id, digest FROM idempotency
 WHERE namespace_id = :namespace_id AND tenant = :tenant AND idempotency_key = :idempotency_key AND until_at > :now_at;
