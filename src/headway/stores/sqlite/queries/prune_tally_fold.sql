-- prune_tally_fold: add old minutes to the row of all that went before.
-- params  before
INSERT INTO tally (namespace_id, minute, what, count)
SELECT namespace_id, 0, what, sum(count) FROM tally WHERE minute > 0 AND minute < :before GROUP BY namespace_id, what
    ON CONFLICT DO UPDATE SET count = count + excluded.count;
