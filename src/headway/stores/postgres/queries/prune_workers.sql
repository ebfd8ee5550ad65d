-- prune_workers: forget workers long dead that hold nothing.
-- params  before_at
DELETE FROM {schema}.worker w WHERE w.state = 'dead' AND w.lease_ends_at <= :before_at
   AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.worker_id = w.worker_id);
