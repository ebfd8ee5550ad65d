-- submit_key: remember an idempotency key; one that has run out is replaced.
-- params  namespace_id, tenant, idempotency_key, job_id, digest, until_at
INSERT OR REPLACE INTO idempotency (namespace_id, tenant, idempotency_key, job_id, digest, until_at)
VALUES (:namespace_id, :tenant, :idempotency_key, :job_id, :digest, :until_at);
