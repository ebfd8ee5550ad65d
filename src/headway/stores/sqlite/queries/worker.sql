-- worker: one worker.
-- params  worker_id, namespace_id
SELECT * FROM worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id;
