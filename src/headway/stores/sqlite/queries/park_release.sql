-- park_release: a key was given back: the parks that wait for that open.
-- params  namespace_id, park
UPDATE park SET open = 1 WHERE namespace_id = :namespace_id AND park = :park AND open = 0 AND open_at IS NULL RETURNING class_id;
