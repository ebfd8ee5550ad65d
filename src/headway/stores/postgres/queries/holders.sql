-- holders: how many leases count against which limits.
-- params  namespace_id
SELECT l.held, count(*) AS count FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE c.namespace_id = :namespace_id AND l.held IS NOT NULL GROUP BY l.held;
