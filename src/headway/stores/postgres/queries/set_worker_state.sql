-- set_worker_state: mark workers draining or dead; they are woken no more.
-- params  state, worker_ids, namespace_id
UPDATE {schema}.worker SET state = :state, waiting = NULL
 WHERE worker_id = ANY (:worker_ids::text[]) AND namespace_id = :namespace_id AND state <> 'dead' RETURNING worker_id;
