-- forget_history: forget a job's attempts.
-- params  seq
DELETE FROM attempt WHERE seq = :seq;
