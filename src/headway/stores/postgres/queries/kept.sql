-- kept: which jobs of these numbers are kept; transient ones never are.
-- params  seqs
SELECT seq FROM {schema}.job WHERE seq = ANY (:seqs::bigint[]);
