-- submit_unique: let a live job hold its unique key.
-- params  namespace_id, unique_key, seq
INSERT INTO unique_key (namespace_id, unique_key, seq) VALUES (:namespace_id, :unique_key, :seq);
