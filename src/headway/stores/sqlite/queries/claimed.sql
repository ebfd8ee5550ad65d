-- claimed: remember the last claim that gave a worker something; it no longer waits.
-- params  claim_id, worker_id
UPDATE worker SET claim_id = :claim_id, waiting = 0 WHERE worker_id = :worker_id;
