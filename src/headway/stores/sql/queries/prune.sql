-- prune: delete what is kept no longer.

-- name: prune_rates
-- Forget rates that have caught up with the clock.
-- params  namespace_id, now_us
DELETE FROM {schema}.rate WHERE namespace_id = :namespace_id AND reached_us <= :now_us;

-- name: prune_stretches
-- Forget what classes waited for long ago.
-- params  namespace_id, before_at
DELETE FROM {schema}.stretch WHERE class_id IN (SELECT class_id FROM {schema}.class WHERE namespace_id = :namespace_id)
   AND until_at <= :before_at;
