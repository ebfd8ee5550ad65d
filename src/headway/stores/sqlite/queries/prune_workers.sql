-- prune_workers: forget workers long dead that hold nothing.
-- params  before_at
DELETE FROM worker WHERE state = 'dead' AND lease_ends_at <= :before_at
   AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.worker_id = worker.worker_id);
