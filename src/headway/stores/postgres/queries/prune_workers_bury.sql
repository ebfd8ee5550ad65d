-- prune_workers_bury: mark the workers dead that let their deadline pass.
-- params  now_at
UPDATE {schema}.worker SET state = 'dead', waiting = NULL WHERE state <> 'dead' AND lease_ends_at <= :now_at;
