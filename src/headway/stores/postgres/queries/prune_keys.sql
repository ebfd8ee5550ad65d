-- prune_keys: forget idempotency keys that have run out.
-- params  now_at, limit
DELETE FROM {schema}.idempotency WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {schema}.idempotency WHERE until_at <= :now_at LIMIT :limit FOR UPDATE SKIP LOCKED));
