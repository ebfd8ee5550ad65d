-- workers: all workers.
-- params  namespace_id
SELECT w.* FROM {schema}.worker w WHERE w.namespace_id = :namespace_id ORDER BY w.started_at, w.worker_id;
