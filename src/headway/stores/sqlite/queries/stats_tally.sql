-- stats_tally: the totals, minute by minute.
-- params  namespace_id
SELECT minute, what, count FROM tally WHERE namespace_id = :namespace_id;
