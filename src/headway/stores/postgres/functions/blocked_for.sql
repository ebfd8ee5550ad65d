-- blocked_for: why jobs of a blocked queue waited, as core's blocked_queue_reason says it.
-- plan    written so that the server makes it part of the statement that calls it
CREATE OR REPLACE FUNCTION {schema}.blocked_for_{version}(queue text, r_name text[], r_limit int[]) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN queue LIKE '=paused:%' THEN 'paused'
              WHEN r_limit[array_position(r_name, split_part(queue, '=', 1))] IS NOT NULL THEN 'limit'
              WHEN split_part(queue, '=', 1) = ANY (r_name) THEN 'rate' ELSE 'limit' END
$$;
