-- count: add to the totals of this minute.
-- params  namespace_id, now_at, kinds, counts
SELECT {schema}.count_up_{version}(:namespace_id, :now_at, :kinds, :counts, false);
