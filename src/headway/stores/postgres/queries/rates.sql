-- rates: how far ahead the starts of all rates were given away.
-- params  namespace_id
SELECT rate_key, reached_us FROM {schema}.rate WHERE namespace_id = :namespace_id;
