-- awake: note that a worker waits no longer.
-- params  worker_id
UPDATE {schema}.worker SET waiting = NULL WHERE worker_id = :worker_id;
