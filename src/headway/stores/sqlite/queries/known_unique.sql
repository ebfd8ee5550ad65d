-- known_unique: the live job that holds a unique key.
-- params  namespace_id, unique_key
SELECT j.job_id FROM unique_key u JOIN job j ON j.seq = u.seq
 WHERE u.namespace_id = :namespace_id AND u.unique_key = :unique_key;
