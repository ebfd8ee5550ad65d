-- stretches: what a class waited for up to a moment, the latest first.
-- params  class_id, until_at
SELECT from_at, until_at, reason FROM {schema}.stretch WHERE class_id = :class_id AND from_at <= :until_at ORDER BY from_at DESC;
