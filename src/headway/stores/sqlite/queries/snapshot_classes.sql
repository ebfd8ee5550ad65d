-- snapshot_classes: each class with how many wait, counted up to a bound, and since when its first has waited.
-- params  bound, namespace_id
SELECT c.lane, c.rung, c.needs, c.persist,
       CASE c.persist WHEN 1 THEN (SELECT count(*) FROM (SELECT 1 FROM ready r WHERE r.class_id = c.class_id LIMIT :bound))
                      ELSE (SELECT count(*) FROM (SELECT 1 FROM transient t WHERE t.class_id = c.class_id LIMIT :bound)) END AS waiting,
       (SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id ORDER BY r.order_key, r.seq LIMIT 1) AS oldest_at
  FROM class c WHERE c.namespace_id = :namespace_id ORDER BY c.lane, c.needs, c.rung, c.persist;
