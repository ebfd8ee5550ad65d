-- claim_terms: note what a lease counts against, which rung it was given, and what its job had been put aside for.
-- params  held, assigned, parked_for, parked_ms, seq
UPDATE lease SET held = :held, assigned = :assigned, parked_for = :parked_for, parked_ms = :parked_ms WHERE seq = :seq;
