-- ordering: place jobs in the order in which they run.

-- name: class_state
-- Whether tenants share a class, and its clock.
-- params  class_id
SELECT fair, clock FROM {schema}.class WHERE class_id = :class_id;
