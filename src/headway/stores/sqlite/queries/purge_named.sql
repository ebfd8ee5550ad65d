-- purge_named: which of these jobs have ended in one of these states.
-- params  namespace_id, states, job_ids, limit
SELECT o.seq FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state IN (SELECT value FROM json_each(:states))
   AND j.job_id IN (SELECT value FROM json_each(:job_ids)) ORDER BY o.seq LIMIT :limit;
