-- forget: forget ended jobs. Where completed ones lie by the day, their rows there stay until the day is dropped.
-- params  seqs, bad
-- gives   those forgotten
-- holds   of the others only those go that have not been taken back in the meantime
WITH o AS (DELETE FROM {schema}.outcome_bad WHERE seq = ANY (:bad::bigint[]) RETURNING seq),
d AS (DELETE FROM {schema}.outcome_any_day WHERE seq = ANY (:seqs::bigint[])),
a AS (DELETE FROM {schema}.attempt WHERE seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[]))
DELETE FROM {schema}.job WHERE seq = ANY (ARRAY(SELECT o.seq FROM o) || :seqs::bigint[]) RETURNING seq;
