-- history: the attempts of these jobs that did not complete them.
-- params  seqs
SELECT seq, number, epoch, worker_id, started_at, ended_at, reason, error FROM attempt
 WHERE seq IN (SELECT value FROM json_each(:seqs)) ORDER BY seq, epoch;
