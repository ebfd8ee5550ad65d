-- free_unique: let go of a unique key.
-- params  namespace_id, unique_key
DELETE FROM unique_key WHERE namespace_id = :namespace_id AND unique_key = :unique_key;
