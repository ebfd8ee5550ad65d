-- tell: tell watchers which jobs have changed.
-- params  namespace_id, job_ids
SELECT {schema}.tell_{version}(:namespace_id, :job_ids);
