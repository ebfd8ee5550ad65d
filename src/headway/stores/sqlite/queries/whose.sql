-- whose: the task and the tenant of a job.
-- params  seq
SELECT task, tenant FROM job WHERE seq = :seq;
