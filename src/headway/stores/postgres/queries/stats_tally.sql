-- stats_tally: the totals, all minutes together and the recent ones by themselves.
-- params  namespace_id, since
SELECT what, sum(count)::bigint AS total, coalesce(sum(count) FILTER (WHERE minute >= :since), 0)::bigint AS recent
  FROM {schema}.tally WHERE namespace_id = :namespace_id GROUP BY what;
