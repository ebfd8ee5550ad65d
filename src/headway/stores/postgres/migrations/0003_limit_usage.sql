-- 0003_limit_usage: how many leases count against each limit, so that a claim need not look at all of them.
-- holds  limit_usage is at every commit what a count of lease.limit_keys gives

-- Beside the keys of limits: '=rung:NAME' counts the jobs on a rung, '=pool' the jobs outside the lanes of the reserve
-- of a pool.
CREATE TABLE {schema}.limit_usage (
  namespace_id int NOT NULL,
  limit_key text COLLATE "C" NOT NULL,
  count int NOT NULL,
  PRIMARY KEY (namespace_id, limit_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

ALTER TABLE {schema}.lease ADD COLUMN limit_keys text[] COLLATE "C";
UPDATE {schema}.lease SET limit_keys = ARRAY(SELECT json_array_elements_text(held::json)) WHERE held IS NOT NULL;
ALTER TABLE {schema}.lease DROP COLUMN held;
INSERT INTO {schema}.limit_usage (namespace_id, limit_key, count)
SELECT c.namespace_id, k.limit_key, count(*) FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
 CROSS JOIN LATERAL unnest(l.limit_keys) k (limit_key) GROUP BY c.namespace_id, k.limit_key;
