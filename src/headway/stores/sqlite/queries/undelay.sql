-- undelay: take one job out of the delayed ones.
-- params  namespace_id, due_at, seq
DELETE FROM delayed WHERE namespace_id = :namespace_id AND due_at = :due_at AND seq = :seq;
