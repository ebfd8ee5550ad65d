-- prune_bad: jobs of one state that ended long enough ago.
-- params  state, finished_at, namespace_id, limit
SELECT o.seq FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.state = :state AND o.state <> 'completed' AND o.finished_at <= :finished_at AND j.namespace_id = :namespace_id
 ORDER BY o.seq LIMIT :limit;
