-- now_ms: the moment by the server's clock, or the one that is given: tests have a clock of their own.
-- holds   no host's clock is read
CREATE OR REPLACE FUNCTION {schema}.now_ms_{version}(at bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;
