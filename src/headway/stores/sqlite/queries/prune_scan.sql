-- prune_scan: a stretch of ended jobs by number, to look for completed ones that are old enough.
-- params  after, limit
SELECT o.seq, o.state, o.finished_at, j.namespace_id FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.seq > :after ORDER BY o.seq LIMIT :limit;
