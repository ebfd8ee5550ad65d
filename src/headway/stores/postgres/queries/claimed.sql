-- claimed: remember the last claim that gave a worker something; it no longer waits.
-- params  claim_id, count, worker_id
UPDATE {schema}.worker SET claim_id = :claim_id, waiting = NULL, running = running + :count WHERE worker_id = :worker_id;
