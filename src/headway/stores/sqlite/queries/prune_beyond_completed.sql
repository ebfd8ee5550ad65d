-- prune_beyond_completed: completed jobs but for those with the highest numbers.
-- params  namespace_id, limit, most
-- plan    walks the ended jobs from the highest number on, past those that stay
SELECT o.seq FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.state = 'completed' AND j.namespace_id = :namespace_id ORDER BY o.seq DESC LIMIT :limit OFFSET :most;
