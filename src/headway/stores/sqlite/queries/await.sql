-- await: note that a worker waits to be woken.
-- params  worker_id
UPDATE worker SET waiting = (SELECT last + 1 FROM sequence) WHERE worker_id = :worker_id;
