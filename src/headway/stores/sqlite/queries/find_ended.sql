-- find_ended: jobs that ended in one of the other states, those that ended last first.
-- params  state, worker_id, namespace_id, task, lane, tenant, submitted_before_at, submitted_after_at, ended_at, ended_seq, limit
SELECT j.seq, o.finished_at FROM outcome o CROSS JOIN job j ON j.seq = o.seq JOIN class c ON c.class_id = j.class_id
 WHERE o.state = :state AND o.state <> 'completed' AND (:worker_id IS NULL OR o.worker_id = :worker_id)
-- use filters
   AND (o.finished_at, o.seq) < (:ended_at, :ended_seq) ORDER BY o.finished_at DESC, o.seq DESC LIMIT :limit;
