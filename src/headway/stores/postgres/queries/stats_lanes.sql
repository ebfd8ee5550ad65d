-- stats_lanes: each lane in numbers.
-- params  namespace_id
SELECT c.lane,
       (sum((SELECT count(*) FROM {schema}.ready r WHERE r.class_id = c.class_id))
         + sum((SELECT count(*) FROM {schema}.transient t WHERE t.class_id = c.class_id)))::bigint AS waiting,
       min(CASE WHEN c.fair THEN (SELECT r.eligible_at FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                                   ORDER BY r.eligible_at LIMIT 1)
                ELSE (SELECT r.eligible_at FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.park = ''
                       ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) END) AS oldest_at,
       sum((SELECT count(*) FROM {schema}.delayed d WHERE d.namespace_id = c.namespace_id AND d.class_id = c.class_id))::bigint AS delayed,
       sum((SELECT count(*) FROM {schema}.lease l WHERE l.class_id = c.class_id))::bigint AS executing
  FROM {schema}.class c WHERE c.namespace_id = :namespace_id GROUP BY c.lane;
