-- history: the attempts of these jobs that did not complete them.
-- params  seqs
SELECT seq, number, epoch, worker_id, started_at, ended_at, reason, error FROM {schema}.attempt
 WHERE seq = ANY (:seqs::bigint[]) ORDER BY seq, epoch;
