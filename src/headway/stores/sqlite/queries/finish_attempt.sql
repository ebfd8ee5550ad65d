-- finish_attempt: keep an attempt that did not complete its job.
-- params  ended_at, reason, error, seq
INSERT OR REPLACE INTO attempt (seq, epoch, number, worker_id, started_at, ended_at, reason, error)
SELECT seq, epoch, attempts, worker_id, started_at, :ended_at, :reason, :error FROM lease WHERE seq = :seq;
