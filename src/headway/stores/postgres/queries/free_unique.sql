-- free_unique: let go of unique keys.
-- params  namespace_id, unique_keys
DELETE FROM {schema}.unique_key WHERE namespace_id = :namespace_id AND unique_key = ANY (:unique_keys::text[]);
