-- snapshot: each class with how many wait, counted up to a bound, since when the longest, and its first one's key.
-- gives   JSON: the classes in order; when the next delayed job falls due or the next park opens; and on a ladder, or
--         where sessions run, the live slots, how many jobs run, how many on each rung, and those that can make room
-- holds   nothing is counted beyond the bound; of the classes named, what lies below their floors is not looked at,
--         unless jobs were put there since the rewind that is given with the floor
-- plan    walks ready from the floor of each class to its first row once: rows that are gone may lie between
CREATE OR REPLACE FUNCTION {schema}.snapshot_{version}(ns int, at bigint, bound int, f_class int[], f_floor bigint[],
                                                       f_rewound int[], rung_names text[])
RETURNS text LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
RETURN json_build_array(
  (SELECT json_agg(json_build_array(c.class_id, c.lane, c.rung, c.needs, c.persist, c.fair, line.waiting,
                                    line.oldest_at, line.head_key, parks.opened, parks.head_key, c.rewound, c.clock)
                   ORDER BY c.lane, c.needs, c.rung, c.persist)
     FROM {schema}.class c
    CROSS JOIN LATERAL (SELECT array_position(f_class, c.class_id) AS place) p
    CROSS JOIN LATERAL (SELECT coalesce(CASE WHEN f_rewound[p.place] = c.rewound THEN f_floor[p.place] END,
                                        -9223372036854775808) AS floor) f
    LEFT JOIN LATERAL (
      SELECT r.order_key, r.eligible_at FROM {schema}.ready r
       WHERE c.persist AND r.class_id = c.class_id AND r.park = '' AND r.order_key >= f.floor
       ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) head ON true
    CROSS JOIN LATERAL (
      SELECT (SELECT count(*) FROM (SELECT FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.park = ''
                                       AND r.order_key >= head.order_key LIMIT bound) x) AS waiting,
             CASE WHEN c.fair
                  THEN (SELECT r.eligible_at FROM {schema}.ready r
                         WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                         ORDER BY r.eligible_at LIMIT 1)
                  ELSE head.eligible_at END AS oldest_at,
             head.order_key AS head_key
       WHERE c.persist
      UNION ALL
      SELECT (SELECT count(*) FROM (SELECT FROM {schema}.transient t WHERE t.class_id = c.class_id LIMIT bound) x),
             CASE WHEN EXISTS (SELECT FROM {schema}.transient t WHERE t.class_id = c.class_id) THEN at END,
             (SELECT t.seq FROM {schema}.transient t WHERE t.class_id = c.class_id ORDER BY t.class_id, t.seq LIMIT 1)
       WHERE NOT c.persist) line
    CROSS JOIN LATERAL (
      SELECT count(*) AS opened, min(p.head_key) AS head_key FROM {schema}.park p
       WHERE p.namespace_id = ns AND p.class_id = c.class_id AND (p.open OR p.open_at <= at)) parks
    WHERE c.namespace_id = ns),
  (SELECT min(soon) FROM (
     SELECT (SELECT d.due_at FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at < {held_at}
              ORDER BY d.namespace_id, d.due_at LIMIT 1)
     UNION ALL
     SELECT (SELECT p.open_at FROM {schema}.park p WHERE p.namespace_id = ns AND p.open_at > at
              ORDER BY p.open_at LIMIT 1)) x (soon)),
  CASE WHEN rung_names IS NOT NULL
         OR EXISTS (SELECT FROM {schema}.class c WHERE c.namespace_id = ns AND c.rung = 'interactive')
       THEN json_build_array(
         (SELECT coalesce(sum(w.slots), 0) FROM {schema}.worker w
           WHERE w.namespace_id = ns AND w.state = 'active' AND w.lease_ends_at > at),
         (SELECT coalesce(sum(w.running), 0) FROM {schema}.worker w WHERE w.namespace_id = ns),
         ARRAY(SELECT coalesce((SELECT u.count FROM {schema}.limit_usage u
                                 WHERE u.namespace_id = ns AND u.limit_key = '=rung:' || r.name), 0)
                 FROM unnest(rung_names) WITH ORDINALITY r (name, o) ORDER BY r.o),
         coalesce((SELECT json_agg(json_build_array(j.job_id, c.rung, l.assigned, l.started_at) ORDER BY l.seq)
                     FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
                     JOIN {schema}.job j ON j.seq = l.seq
                    WHERE c.namespace_id = ns AND c.rung IN ('default', 'interactive')), '[]')) END);
END $$;
