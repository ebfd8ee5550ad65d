-- forget_worker: forget a worker that has left and holds nothing.
-- params  worker_id, namespace_id
DELETE FROM {schema}.worker w WHERE w.worker_id = :worker_id AND w.namespace_id = :namespace_id AND w.state = 'dead'
   AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.worker_id = w.worker_id);
