-- verdict: what becomes of an edge, as core's workflow.settle says it.
CREATE OR REPLACE FUNCTION {schema}.verdict_{version}(rule text, status text, failing boolean) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN rule = 'on_failure' THEN CASE WHEN failing THEN 'satisfy' WHEN status = 'live' THEN 'wait'
                                                 ELSE 'cancel' END
              WHEN status = 'live' THEN 'wait'
              WHEN status = 'completed' OR rule IN ('run', 'on_done') THEN 'satisfy'
              WHEN rule = 'cancel' THEN 'cancel' ELSE 'wait' END
$$;
