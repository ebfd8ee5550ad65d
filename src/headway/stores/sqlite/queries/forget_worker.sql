-- forget_worker: forget a worker that has left and holds nothing.
-- params  worker_id, namespace_id
DELETE FROM worker WHERE worker_id = :worker_id AND namespace_id = :namespace_id AND state = 'dead'
   AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.worker_id = worker.worker_id);
