-- rate_step: note how far ahead they are given away now.
-- params  namespace_id, rate_key, reached_us
INSERT OR REPLACE INTO rate (namespace_id, rate_key, reached_us) VALUES (:namespace_id, :rate_key, :reached_us);
