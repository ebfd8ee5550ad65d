-- prune_scan: a stretch of completed jobs by number, to look for those that are old enough.
-- params  after, finished_at, limit
SELECT o.seq, o.finished_at <= :finished_at AS old, j.namespace_id FROM {schema}.outcome_completed o LEFT JOIN {schema}.job j ON j.seq = o.seq
 WHERE o.seq > :after ORDER BY o.seq LIMIT :limit;
