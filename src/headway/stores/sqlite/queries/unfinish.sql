-- unfinish: take back how a job ended.
-- params  seq
DELETE FROM outcome WHERE seq = :seq;
