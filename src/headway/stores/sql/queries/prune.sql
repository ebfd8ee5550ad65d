-- prune: delete what is kept no longer.

-- name: prune_stretches
-- Forget what classes waited for long ago.
-- params  namespace_id, before_at
DELETE FROM {schema}.stretch WHERE class_id IN (SELECT class_id FROM {schema}.class WHERE namespace_id = :namespace_id)
   AND until_at <= :before_at;
