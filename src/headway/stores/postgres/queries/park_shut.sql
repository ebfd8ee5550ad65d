-- park_shut: a park has no room, until a moment or until its key is given back.
-- params  open_at, namespace_id, park, class_id
UPDATE {schema}.park SET open = false, open_at = :open_at WHERE namespace_id = :namespace_id AND park = :park AND class_id = :class_id;
