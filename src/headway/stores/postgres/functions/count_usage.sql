-- count_usage: add to how many leases count against each limit.
-- holds   a key is written once, with the sum of what changes
-- plan    a row finds its sum by searching the sorted keys: a join could look at all sums for every row
CREATE OR REPLACE FUNCTION {schema}.count_usage_{version}(ns int, keys text[], deltas int[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  changed text[];
  sums int[];
  known int;
BEGIN
  SELECT array_agg(x.key), array_agg(x.delta) INTO changed, sums
    FROM (SELECT d.key COLLATE "C" AS key, sum(d.delta)::int AS delta FROM unnest(keys, deltas) d (key, delta)
           GROUP BY 1 HAVING sum(d.delta) <> 0 ORDER BY 1) x;
  IF changed IS NULL THEN
    RETURN;
  END IF;
  UPDATE {schema}.limit_usage u SET count = u.count + sums[width_bucket(u.limit_key COLLATE "C", changed)]
   WHERE u.namespace_id = ns AND u.limit_key = ANY (changed);
  GET DIAGNOSTICS known = ROW_COUNT;
  IF known < cardinality(changed) THEN
    INSERT INTO {schema}.limit_usage (namespace_id, limit_key, count)
    SELECT ns, d.key, d.delta FROM unnest(changed, sums) d (key, delta)
     WHERE NOT EXISTS (SELECT FROM {schema}.limit_usage u WHERE u.namespace_id = ns AND u.limit_key = d.key);
  END IF;
END $$;
