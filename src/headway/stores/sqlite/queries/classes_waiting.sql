-- classes_waiting: the classes with waiting jobs that are on the ladder, or outside the lanes of a reserve.
-- params  namespace_id, ladder, lanes
SELECT c.class_id FROM class c
 WHERE c.namespace_id = :namespace_id
   AND ((:ladder AND c.rung <> '') OR (:lanes IS NOT NULL AND c.lane NOT IN (SELECT value FROM json_each(:lanes))))
   AND EXISTS (SELECT 1 FROM ready r WHERE r.class_id = c.class_id AND r.park = '')
 ORDER BY c.lane, c.needs, c.rung;
