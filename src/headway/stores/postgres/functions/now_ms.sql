-- now_ms: store time, by the rule of core/policy/clock.py, from the server's clock or from the one that a test gives.
-- holds   no host's clock is read; store time never goes back by more than a second
-- cost    a few µs: a session remembers for a second what it has read. Reading both sequences each time takes three
--         times as long
CREATE OR REPLACE FUNCTION {schema}.now_ms_{version}(at bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  raw bigint := coalesce(at, {schema}.raw_ms_{version}());
  known bigint[] := nullif(current_setting('headway.clock', true), '')::bigint[];  -- of which schema, the clock, ahead
  ahead bigint;
  reached bigint;
  passed bigint;
  back bigint;
BEGIN
  IF known[1] = {gate} AND raw - known[2] BETWEEN 0 AND 999 THEN
    RETURN raw + known[3];
  END IF;
  SELECT a.last_value, r.last_value INTO ahead, reached FROM {schema}.clock_ahead a, {schema}.clock_reached r;
  passed := raw + ahead - reached;
  IF passed BETWEEN -1000 AND -1 THEN
    RETURN reached;
  ELSIF passed < 0 THEN
    ahead := reached + 1000 - raw;
    PERFORM setval('{schema}.clock_reached', reached + 1000), setval('{schema}.clock_ahead', ahead);
  ELSIF passed > 1000 THEN
    IF ahead > 0 THEN
      back := least(ahead, CASE WHEN passed > 60000 THEN passed - 1000 ELSE passed / 20 END);
      ahead := ahead - back;
      PERFORM setval('{schema}.clock_ahead', ahead);
    END IF;
    PERFORM setval('{schema}.clock_reached', raw + ahead);
  END IF;
  PERFORM set_config('headway.clock', ARRAY[{gate}, raw, ahead]::text, false);
  RETURN raw + ahead;
END $$;
