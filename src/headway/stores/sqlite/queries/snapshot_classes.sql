-- snapshot_classes: each class with how many wait, counted up to a bound, since when the longest, and its first one's key.
-- params  bound, now_at, namespace_id
SELECT c.lane, c.rung, c.needs, c.persist, c.fair,
       CASE c.persist WHEN 1 THEN (SELECT count(*) FROM (SELECT 1 FROM ready r WHERE r.class_id = c.class_id AND r.park = '' LIMIT :bound))
                      ELSE (SELECT count(*) FROM (SELECT 1 FROM transient t WHERE t.class_id = c.class_id LIMIT :bound)) END AS waiting,
       CASE c.fair WHEN 1 THEN (SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                                 ORDER BY r.eligible_at LIMIT 1)
                   ELSE (SELECT r.eligible_at FROM ready r WHERE r.class_id = c.class_id AND r.park = '' ORDER BY r.order_key, r.seq LIMIT 1)
       END AS oldest_at,
       CASE c.persist WHEN 1 THEN (SELECT r.order_key FROM ready r WHERE r.class_id = c.class_id AND r.park = '' ORDER BY r.order_key LIMIT 1)
                      ELSE (SELECT t.seq FROM transient t WHERE t.class_id = c.class_id ORDER BY t.seq LIMIT 1) END AS head_key,
       (SELECT count(*) FROM park p WHERE p.class_id = c.class_id AND p.open = 1)
         + (SELECT count(*) FROM park p WHERE p.namespace_id = c.namespace_id AND p.open_at <= :now_at AND p.class_id = c.class_id) AS parks,
       (SELECT p.head_key FROM park p WHERE p.class_id = c.class_id AND p.open = 1 ORDER BY p.head_key, p.head_seq LIMIT 1) AS park_key,
       (SELECT min(p.head_key) FROM park p WHERE p.namespace_id = c.namespace_id AND p.open_at <= :now_at AND p.class_id = c.class_id)
         AS due_key
  FROM class c WHERE c.namespace_id = :namespace_id ORDER BY c.lane, c.needs, c.rung, c.persist;
