-- amend: give running jobs other rungs.
-- params  seqs, assigned
UPDATE {schema}.lease l SET assigned = a.assigned FROM unnest(:seqs::bigint[], :assigned::text[]) a (seq, assigned) WHERE l.seq = a.seq;
