-- get: everything about these jobs.
-- params  job_ids, namespace_id
-- use job
 WHERE j.job_id IN (SELECT value FROM json_each(:job_ids)) AND j.namespace_id = :namespace_id;
