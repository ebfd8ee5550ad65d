-- running_lanes: how many jobs run in each lane.
-- params  namespace_id
SELECT c.lane, count(*) AS count FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
 WHERE c.namespace_id = :namespace_id GROUP BY c.lane;
