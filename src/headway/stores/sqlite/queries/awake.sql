-- awake: note that a worker has been woken.
-- params  worker_id
UPDATE worker SET waiting = 0 WHERE worker_id = :worker_id;
