-- await: note that a worker waits to be woken.
-- params  claim_id, worker_id
UPDATE worker SET claim_id = :claim_id, waiting = (SELECT last + 1 FROM sequence) WHERE worker_id = :worker_id;
