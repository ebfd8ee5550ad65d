-- notify: send a wake-up to one worker, or to the renewal of its leases, once this transaction is durable.
-- holds   a message fits into a notification
CREATE OR REPLACE FUNCTION {schema}.notify_{version}(ns int, kind text, target text) RETURNS void LANGUAGE sql AS $$
  SELECT pg_notify(n.channel, CASE WHEN octet_length(target) < 7000 THEN kind || target ELSE '*' END)
    FROM {schema}.namespace n WHERE n.namespace_id = ns
$$;
