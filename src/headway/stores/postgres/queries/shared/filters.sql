-- filters: what find's callers may ask of a job; j is the job, c its class.
   AND j.namespace_id = :namespace_id
   AND (:task::text IS NULL OR j.task = :task)
   AND (:lane::text IS NULL OR c.lane = :lane)
   AND (:tenant::text IS NULL OR j.tenant = :tenant)
   AND (:submitted_before_at::bigint IS NULL OR j.submitted_at < :submitted_before_at)
   AND (:submitted_after_at::bigint IS NULL OR j.submitted_at >= :submitted_after_at)
