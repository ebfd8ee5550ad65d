-- finish_attempt: keep an attempt that did not complete its job.
-- params  seq, epoch, number, worker_id, started_at, ended_at, reason, error
INSERT OR REPLACE INTO attempt (seq, epoch, number, worker_id, started_at, ended_at, reason, error)
VALUES (:seq, :epoch, :number, :worker_id, :started_at, :ended_at, :reason, :error);
