-- is_kept: whether a job of this number is kept; transient ones never are.
-- params  seq
SELECT 1 FROM job WHERE seq = :seq;
