-- live_slots: the slots of the workers that take jobs.
-- params  namespace_id, now_at
SELECT coalesce(sum(slots), 0) FROM {schema}.worker WHERE namespace_id = :namespace_id AND state = 'active' AND lease_ends_at > :now_at;
