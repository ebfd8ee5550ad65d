-- get: everything about these jobs.
-- params  job_ids, namespace_id
-- use job
 WHERE j.job_id = ANY (:job_ids::text[]) AND j.namespace_id = :namespace_id;
