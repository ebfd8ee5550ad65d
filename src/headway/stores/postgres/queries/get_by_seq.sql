-- get_by_seq: everything about the jobs of these numbers.
-- params  seqs
-- use job
 WHERE j.seq = ANY (:seqs::bigint[]);
