-- stretch_last: what a class was last seen to wait for.
-- params  class_id
SELECT from_at, until_at, reason FROM {schema}.stretch WHERE class_id = :class_id ORDER BY from_at DESC LIMIT 1;
