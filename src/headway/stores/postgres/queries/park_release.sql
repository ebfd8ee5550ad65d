-- park_release: a key was given back: the parks that wait for that open.
-- params  namespace_id, park
UPDATE {schema}.park SET open = true WHERE namespace_id = :namespace_id AND park = :park AND NOT open AND open_at IS NULL RETURNING class_id;
