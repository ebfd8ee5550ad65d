-- held: the leases that a batch of reports speaks of, with what may change how they end.
-- params  seqs
SELECT seq, token, cancel_at, unique_key, held FROM lease WHERE seq IN (SELECT value FROM json_each(:seqs));
