-- workers: all workers, with the leases each holds.
-- params  namespace_id
SELECT w.*, (SELECT count(*) FROM lease l WHERE l.worker_id = w.worker_id) AS running
  FROM worker w WHERE w.namespace_id = :namespace_id ORDER BY w.started_at, w.worker_id;
