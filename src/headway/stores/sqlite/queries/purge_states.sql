-- purge_states: jobs that have ended in one of these states.
-- params  namespace_id, states, limit
SELECT o.seq FROM outcome o JOIN job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state IN (SELECT value FROM json_each(:states)) ORDER BY o.seq LIMIT :limit;
