-- raw_ms: the server's clock, whatever it says.
-- holds   nothing else reads it
CREATE OR REPLACE FUNCTION {schema}.raw_ms_{version}() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;
