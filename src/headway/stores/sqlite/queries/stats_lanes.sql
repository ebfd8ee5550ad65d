-- stats_lanes: each lane in numbers.
-- params  namespace_id
SELECT c.lane,
       sum((SELECT count(*) FROM ready r WHERE r.class_id = c.class_id))
         + sum((SELECT count(*) FROM transient t WHERE t.class_id = c.class_id)) AS waiting,
       min((SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id ORDER BY r.order_key, r.seq LIMIT 1)) AS oldest_at,
       sum((SELECT count(*) FROM delayed d WHERE d.namespace_id = c.namespace_id AND d.class_id = c.class_id)) AS delayed,
       sum((SELECT count(*) FROM lease l WHERE l.class_id = c.class_id)) AS executing
  FROM class c WHERE c.namespace_id = :namespace_id GROUP BY c.lane;
