-- workers: all workers, with the leases each holds.
-- params  namespace_id
SELECT w.*, (SELECT count(*) FROM {schema}.lease l WHERE l.worker_id = w.worker_id) AS held
  FROM {schema}.worker w WHERE w.namespace_id = :namespace_id ORDER BY w.started_at, w.worker_id;
