-- prune_tally: fold old minutes into the row of all that went before.
-- params  namespace_id, before
WITH gone AS (DELETE FROM {schema}.tally WHERE namespace_id = :namespace_id AND minute > 0 AND minute < :before RETURNING what, count)
INSERT INTO {schema}.tally AS t (namespace_id, minute, shard, what, count)
SELECT :namespace_id, 0, 0, what, sum(count) FROM gone GROUP BY what
    ON CONFLICT (namespace_id, minute, what, shard) DO UPDATE SET count = t.count + excluded.count;
