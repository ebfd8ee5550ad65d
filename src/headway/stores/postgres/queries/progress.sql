-- progress: note how far running jobs have come.
-- params  seqs, tokens, fractions, notes
UPDATE {schema}.lease l SET progress = p.fraction, note = p.note
  FROM unnest(:seqs::bigint[], :tokens::bytea[], :fractions::double precision[], :notes::text[]) p (seq, token, fraction, note)
 WHERE l.seq = p.seq AND l.token = p.token;
