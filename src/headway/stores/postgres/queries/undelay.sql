-- undelay: take jobs out of the delayed ones.
-- params  namespace_id, due_at, seq
-- gives   the job, if it was there
DELETE FROM {schema}.delayed WHERE namespace_id = :namespace_id AND due_at = :due_at AND seq = :seq RETURNING seq;
