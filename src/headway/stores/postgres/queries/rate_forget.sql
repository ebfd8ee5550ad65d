-- rate_forget: forget a rate that counts no starts any more.
-- params  namespace_id, rate_key
DELETE FROM {schema}.rate WHERE namespace_id = :namespace_id AND rate_key = :rate_key;
