-- prune_keys: forget idempotency keys that have run out.
-- params  now_at, limit
DELETE FROM idempotency WHERE (namespace_id, tenant, idempotency_key) IN
  (SELECT namespace_id, tenant, idempotency_key FROM idempotency WHERE until_at <= :now_at LIMIT :limit);
