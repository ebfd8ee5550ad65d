-- rate: how far ahead the starts of a rate were given away.
-- params  namespace_id, rate_key
SELECT reached_us FROM rate WHERE namespace_id = :namespace_id AND rate_key = :rate_key;
