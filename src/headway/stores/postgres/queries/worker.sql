-- worker: one worker, locked until the end.
-- params  worker_id, namespace_id
SELECT state FROM {schema}.worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id FOR NO KEY UPDATE;
