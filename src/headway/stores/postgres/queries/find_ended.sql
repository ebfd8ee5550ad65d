-- find_ended: jobs that ended in one of the other states, those that ended last first.
-- params  state, worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, ended_at, ended_seq, limit
SELECT j.seq, o.finished_at FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq JOIN {schema}.class c ON c.class_id = j.class_id
 WHERE o.state = :state AND (:worker_id::text IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND (o.finished_at, o.seq) < (:ended_at, :ended_seq) ORDER BY o.finished_at DESC, o.seq DESC LIMIT :limit;
