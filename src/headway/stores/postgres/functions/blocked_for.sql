-- blocked_for: why jobs of a blocked queue waited, as core's blocked_queue_reason says it.
CREATE OR REPLACE FUNCTION {schema}.blocked_for_{version}(queue text, r_name text[], r_limit int[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  rule int := array_position(r_name, split_part(queue, '=', 1));
BEGIN
  RETURN CASE WHEN queue LIKE '=paused:%' THEN 'paused' WHEN rule IS NOT NULL AND r_limit[rule] IS NULL THEN 'rate'
              ELSE 'limit' END;
END $$;
