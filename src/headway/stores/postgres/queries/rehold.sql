-- rehold: note anew which limits leases count against.
-- params  seqs, held
UPDATE {schema}.lease l SET held = x.held FROM unnest(:seqs::bigint[], :held::text[]) x (seq, held) WHERE l.seq = x.seq;
