-- amend_seen: the running jobs among these, with the rung each asked for and was given, and who holds it.
-- params  job_ids, namespace_id
SELECT j.job_id, l.seq, c.rung, l.assigned, l.worker_id FROM json_each(:job_ids) e JOIN job j ON j.job_id = e.value AND j.namespace_id = :namespace_id
  JOIN lease l ON l.seq = j.seq JOIN class c ON c.class_id = l.class_id;
