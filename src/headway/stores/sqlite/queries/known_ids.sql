-- known_ids: which of these job ids are already kept.
-- params  job_ids, namespace_id
SELECT job_id, task, payload FROM job WHERE job_id IN (SELECT value FROM json_each(:job_ids)) AND namespace_id = :namespace_id;
