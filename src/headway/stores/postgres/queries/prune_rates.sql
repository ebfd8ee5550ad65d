-- prune_rates: forget rates that have caught up with the clock.
-- params  namespace_id, now_us
DELETE FROM {schema}.rate WHERE namespace_id = :namespace_id AND reached_us <= :now_us;
