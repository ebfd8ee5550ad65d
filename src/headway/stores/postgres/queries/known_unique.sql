-- known_unique: the live job that holds a unique key.
-- params  namespace_id, unique_key
SELECT job_id FROM {schema}.unique_key WHERE namespace_id = :namespace_id AND unique_key = :unique_key;
