-- unlease: end leases.
-- params  seqs
DELETE FROM lease WHERE seq IN (SELECT value FROM json_each(:seqs));
