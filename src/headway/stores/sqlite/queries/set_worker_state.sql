-- set_worker_state: mark a worker draining or dead; it is woken no more.
-- params  state, worker_id, namespace_id
UPDATE worker SET state = :state, waiting = 0 WHERE worker_id = :worker_id AND namespace_id = :namespace_id AND state <> 'dead' RETURNING 1;
