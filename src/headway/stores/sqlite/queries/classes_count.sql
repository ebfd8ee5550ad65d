-- classes_count: how many classes a namespace has.
-- params  namespace_id
SELECT count(*) FROM class WHERE namespace_id = :namespace_id;
