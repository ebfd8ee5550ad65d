-- prune_scan: a stretch of completed jobs by number, to look for those that are old enough.
-- params  after, finished_at, ends_at, limit
-- gives   no namespace for those that are forgotten: their days will be dropped
-- plan    days that end later than ends_at are not looked at
SELECT o.seq, o.finished_at <= :finished_at AS old, j.namespace_id FROM {schema}.outcome_completed o LEFT JOIN {schema}.job j ON j.seq = o.seq
 WHERE o.seq > :after AND o.finished_at < :ends_at ORDER BY o.seq LIMIT :limit;
