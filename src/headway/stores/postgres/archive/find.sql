-- find: jobs that ended, newest first. What is not asked for is NULL.
-- params  namespace, before, states, task, lane, tenant, worker_id, submitted_before_at, submitted_after_at, limit
SELECT *, now() AS seen_at FROM headway_history
 WHERE namespace = $1 AND seq < $2
   AND ($3::text[] IS NULL OR state = ANY ($3::text[]))
   AND ($4::text IS NULL OR task = $4::text)
   AND ($5::text IS NULL OR lane = $5::text)
   AND ($6::text IS NULL OR tenant = $6::text)
   AND ($7::text IS NULL OR worker_id = $7::text)
   AND ($8::timestamptz IS NULL OR submitted_at < $8::timestamptz)
   AND ($9::timestamptz IS NULL OR submitted_at >= $9::timestamptz)
 ORDER BY seq DESC, job_id LIMIT $10
