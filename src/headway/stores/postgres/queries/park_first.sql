-- park_first: the open park of a class whose first job is next.
-- params  class_id
SELECT park, head_key, head_seq FROM {schema}.park WHERE class_id = :class_id AND open ORDER BY head_key, head_seq LIMIT 1;
