-- held: the leases that a batch of reports speaks of, locked until the end, with what their jobs need to go back.
-- params  seqs
SELECT l.seq, l.token, l.worker_id, l.class_id, l.started_at, l.eligible_at, l.epoch, l.attempts, l.timeout_ms, l.unique_key, l.cancel_at, l.progress, l.note,
       l.held, l.parked_for, l.parked_ms, j.task, j.tenant, j.expires_at
  FROM {schema}.lease l JOIN {schema}.job j ON j.seq = l.seq WHERE l.seq = ANY (:seqs::bigint[]) ORDER BY l.seq FOR UPDATE OF l;
