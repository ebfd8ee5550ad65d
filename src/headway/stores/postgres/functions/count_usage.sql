-- count_usage: add to how many leases count against each limit.
-- holds   a key is written once, with the sum of what changes
-- plan    one statement for all keys that change by the same number, mostly 1 or -1: to find the sum of each row costs
--         as much as to write it
CREATE OR REPLACE FUNCTION {schema}.count_usage_{version}(ns int, keys text[], deltas int[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  change record;
  known int;
BEGIN
  FOR change IN
    SELECT x.delta, array_agg(x.key) AS keys
      FROM (SELECT d.key COLLATE "C" AS key, sum(d.delta)::int AS delta
              FROM (SELECT unnest(keys) AS key, unnest(deltas) AS delta) d GROUP BY 1) x
     WHERE x.delta <> 0 GROUP BY x.delta
  LOOP
    UPDATE {schema}.limit_usage u SET count = u.count + change.delta
     WHERE u.namespace_id = ns AND u.limit_key = ANY (change.keys);
    GET DIAGNOSTICS known = ROW_COUNT;
    IF known < cardinality(change.keys) THEN
      INSERT INTO {schema}.limit_usage (namespace_id, limit_key, count)
      SELECT ns, d.key, change.delta FROM unnest(change.keys) d (key)
       WHERE NOT EXISTS (SELECT FROM {schema}.limit_usage u
                          WHERE u.namespace_id = ns AND u.limit_key = d.key OFFSET 0);
    END IF;
  END LOOP;
END $$;
