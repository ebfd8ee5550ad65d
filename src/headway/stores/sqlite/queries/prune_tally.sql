-- prune_tally: remove the minutes that were folded.
-- params  before
DELETE FROM tally WHERE minute > 0 AND minute < :before;
