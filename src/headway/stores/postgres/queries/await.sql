-- await: note that a worker waits to be woken, and for jobs of which lanes.
-- params  wait_lanes, worker_id
UPDATE {schema}.worker SET wait_lanes = :wait_lanes, waiting = nextval('{schema}.turn') WHERE worker_id = :worker_id;
