-- amend: give a running job another rung.
-- params  assigned, seq
UPDATE lease SET assigned = :assigned WHERE seq = :seq;
