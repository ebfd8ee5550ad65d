-- unlease: end a lease.
-- params  seq
DELETE FROM lease WHERE seq = :seq;
