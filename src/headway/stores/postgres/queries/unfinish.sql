-- unfinish: take back how a job ended.
-- params  seq
-- gives   the job, if it had ended
DELETE FROM {schema}.outcome WHERE seq = :seq RETURNING seq;
