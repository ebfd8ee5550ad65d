-- get: jobs by their ids.
-- params  namespace, ids
SELECT *, now() AS seen_at FROM headway_history WHERE namespace = $1 AND job_id = ANY ($2::text[])
