-- wake_all: wake every waiting worker.
-- params  namespace_id, now_at
WITH woken AS (UPDATE {schema}.worker SET waiting = NULL
                WHERE namespace_id = :namespace_id AND waiting IS NOT NULL AND state = 'active' AND lease_ends_at > :now_at RETURNING worker_id)
SELECT {schema}.ring_{version}(:namespace_id, 'w', worker_id) FROM woken;
