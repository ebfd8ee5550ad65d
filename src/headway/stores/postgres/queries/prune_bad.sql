-- prune_bad: jobs of one state that ended long enough ago.
-- params  state, finished_at, namespace_id, limit
SELECT o.seq FROM {schema}.outcome_bad o JOIN {schema}.job j ON j.seq = o.seq
 WHERE o.state = :state AND o.finished_at <= :finished_at AND j.namespace_id = :namespace_id
 ORDER BY o.seq LIMIT :limit;
