-- forget_job: forget a job.
-- params  seq
DELETE FROM job WHERE seq = :seq;
