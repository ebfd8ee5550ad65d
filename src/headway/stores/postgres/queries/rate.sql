-- rate: how far ahead the starts of these rates were given away.
-- params  namespace_id, rate_keys
SELECT rate_key, reached_us FROM {schema}.rate WHERE namespace_id = :namespace_id AND rate_key = ANY (:rate_keys::text[]);
