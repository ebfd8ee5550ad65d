-- prune_workers_bury: mark the workers dead that let their deadline pass. Whoever is busy with one sees to it as well.
-- params  now_at
UPDATE {schema}.worker SET state = 'dead', waiting = NULL WHERE worker_id IN (
  SELECT w.worker_id FROM {schema}.worker w WHERE w.state <> 'dead' AND w.lease_ends_at <= :now_at
   ORDER BY w.worker_id FOR NO KEY UPDATE SKIP LOCKED);
