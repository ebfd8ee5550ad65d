-- await: note that a worker waits to be woken, and for jobs of which lanes.
-- params  wait_lanes, worker_id
UPDATE worker SET wait_lanes = :wait_lanes, waiting = (SELECT last + 1 FROM sequence) WHERE worker_id = :worker_id;
