-- rate_step: note how far ahead rates are given away now.
-- params  namespace_id, rate_keys, reached_us
INSERT INTO {schema}.rate (namespace_id, rate_key, reached_us)
SELECT :namespace_id, x.rate_key, x.reached_us FROM unnest(:rate_keys::text[], :reached_us::bigint[]) x (rate_key, reached_us)
    ON CONFLICT (namespace_id, rate_key) DO UPDATE SET reached_us = excluded.reached_us;
