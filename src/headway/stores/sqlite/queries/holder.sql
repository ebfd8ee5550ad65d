-- holder: the worker that holds a job.
-- params  seq
SELECT worker_id FROM lease WHERE seq = :seq;
