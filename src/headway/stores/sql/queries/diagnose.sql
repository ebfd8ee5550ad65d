-- diagnose: explain why a job waits, and sample what classes wait for.

-- name: stretch_last
-- What a class was last seen to wait for.
-- params  class_id
SELECT from_at, until_at, reason FROM {schema}.stretch WHERE class_id = :class_id ORDER BY from_at DESC LIMIT 1;

-- name: stretches
-- What a class waited for up to a moment, the latest first.
-- params  class_id, until_at
SELECT from_at, until_at, reason FROM {schema}.stretch WHERE class_id = :class_id AND from_at <= :until_at
 ORDER BY from_at DESC;

-- name: witness_turn
-- Take the turn to sample what classes wait for, if no process did a moment ago.
-- params  now_at, namespace_id, before_at
UPDATE {schema}.namespace SET witnessed_at = :now_at WHERE namespace_id = :namespace_id AND witnessed_at <= :before_at
RETURNING 1;
