-- awake: note that a worker waits no longer.
-- params  worker_id
UPDATE worker SET waiting = 0 WHERE worker_id = :worker_id;
