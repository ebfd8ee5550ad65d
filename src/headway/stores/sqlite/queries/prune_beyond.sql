-- prune_beyond: jobs of one state that ended badly, but for the newest ones.
-- params  state, namespace_id, limit, most
-- plan    walks the index of what ended badly past the newest ones
SELECT o.seq FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE o.state = :state AND o.state <> 'completed' AND j.namespace_id = :namespace_id
 ORDER BY o.finished_at DESC, o.seq DESC LIMIT :limit OFFSET :most;
