-- purge_states: jobs that have ended in one of these states.
-- params  namespace_id, states, limit
SELECT o.seq, o.state FROM {schema}.outcome o JOIN {schema}.job j ON j.seq = o.seq
 WHERE j.namespace_id = :namespace_id AND o.state = ANY (:states::text[]) ORDER BY o.seq LIMIT :limit;
