-- forget: forget ended jobs.
-- params  seqs
WITH o AS (DELETE FROM {schema}.outcome WHERE seq = ANY (:seqs::bigint[])),
a AS (DELETE FROM {schema}.attempt WHERE seq = ANY (:seqs))
DELETE FROM {schema}.job WHERE seq = ANY (:seqs);
