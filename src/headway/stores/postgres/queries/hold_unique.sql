-- hold_unique: let a live job hold its unique key.
-- params  namespace_id, unique_key, job_id
INSERT INTO {schema}.unique_key (namespace_id, unique_key, job_id) VALUES (:namespace_id, :unique_key, :job_id);
