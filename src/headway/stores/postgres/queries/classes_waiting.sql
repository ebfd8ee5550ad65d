-- classes_waiting: the classes with waiting jobs that are on the ladder, or outside the lanes of a reserve.
-- params  namespace_id, ladder, lanes
SELECT c.class_id FROM {schema}.class c
 WHERE c.namespace_id = :namespace_id AND c.persist
   AND ((:ladder AND c.rung <> '') OR (:lanes::text[] IS NOT NULL AND c.lane <> ALL (:lanes)))
   AND EXISTS (SELECT FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.park = '')
 ORDER BY c.lane, c.needs, c.rung;
