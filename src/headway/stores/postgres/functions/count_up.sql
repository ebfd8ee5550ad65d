-- count_up: add to the totals of this minute, in this session's own rows.
--         There are new ones every ten seconds: while old versions cannot be cleared away, each change walks over them
-- holds   few sessions share rows and so wait for each other, and none for one whose transaction is a caller's own
CREATE OR REPLACE FUNCTION {schema}.count_up_{version}(ns int, at bigint, kinds text[], counts bigint[], own boolean)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {schema}.tally AS t (namespace_id, minute, shard, what, count)
  SELECT ns, at / 60000,
         CASE WHEN own THEN 1000 + pg_backend_pid() ELSE pg_backend_pid() % 32 + 32 * (at / 10000 % 6) END,
         k.what, sum(k.count)
    FROM unnest(kinds, counts) k (what, count)
   WHERE k.count > 0 GROUP BY k.what ORDER BY k.what
      ON CONFLICT (namespace_id, minute, what, shard) DO UPDATE SET count = t.count + excluded.count;
END $$;
