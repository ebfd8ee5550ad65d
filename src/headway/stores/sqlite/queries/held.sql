-- held: the leases that a batch of reports speaks of.
-- params  seqs
SELECT seq, token, worker_id, class_id, started_at, eligible_at, epoch, attempts, unique_key, cancel_at, progress, note, held, parked_for, parked_ms
  FROM lease WHERE seq IN (SELECT value FROM json_each(:seqs));
