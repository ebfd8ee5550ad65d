-- count_batches: add to the counts of batches, and find those that are failing, have ended or are live again.
-- gives   the batches whose edges are to be settled, those that have begun a new round, and what changes in the
--         parents of those that ended or are live again
-- holds   each batch is written once, in the order of their numbers, by a session that holds the flow lock or the
--         namespace alone
CREATE OR REPLACE FUNCTION {schema}.count_batches_{version}(
  now_at bigint, INOUT c_batch bigint[], INOUT c_kind text[], INOUT c_count int[], OUT touched bigint[],
  OUT reopened bigint[])
LANGUAGE plpgsql AS $$
DECLARE
  n_batch bigint[] := c_batch;
  n_kind text[] := c_kind;
  n_count int[] := c_count;
  batch record;
  reopens boolean;
  fails boolean;
  finishes boolean;
  is_bad boolean;  -- The batch ended, or had ended, with a member that did not complete.
BEGIN
  c_batch := NULL;
  c_kind := NULL;
  c_count := NULL;
  FOR batch IN
    SELECT c.*, b.open, b.live AS was_live, b.failed AS was_failed, b.cancelled AS was_cancelled, b.failing,
           b.cancel_at, b.finished_at, b.parent_seq
      FROM (SELECT c.batch AS seq,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'live'), 0)::int AS live,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'children'), 0)::int AS children,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'held'), 0)::int AS held,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'completed'), 0)::int AS completed,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'failed'), 0)::int AS failed,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'cancelled'), 0)::int AS cancelled,
                   coalesce(sum(c.count) FILTER (WHERE c.kind = 'bad'), 0) > 0 AS bad
              FROM unnest(n_batch, n_kind, n_count) c (batch, kind, count) GROUP BY c.batch ORDER BY c.batch) c
     CROSS JOIN LATERAL (SELECT * FROM {schema}.batch b WHERE b.seq = c.seq FOR NO KEY UPDATE) b
  LOOP
    reopens := batch.finished_at IS NOT NULL AND batch.was_live + batch.live > 0;
    fails := batch.bad AND (reopens OR batch.cancel_at IS NULL AND NOT batch.failing);
    finishes := batch.finished_at IS NULL AND NOT batch.open AND batch.was_live + batch.live = 0;
    UPDATE {schema}.batch b
       SET live = b.live + batch.live, children = b.children + batch.children, held = b.held + batch.held,
           completed = b.completed + batch.completed, failed = b.failed + batch.failed,
           cancelled = b.cancelled + batch.cancelled, round = b.round + reopens::int,
           failing = fails OR b.failing AND NOT reopens, cancel_at = CASE WHEN NOT reopens THEN b.cancel_at END,
           finished_at = CASE WHEN reopens THEN NULL WHEN finishes THEN now_at ELSE b.finished_at END
     WHERE b.seq = batch.seq;
    IF reopens THEN
      reopened := reopened || batch.seq;
    END IF;
    IF (reopens OR finishes) AND batch.parent_seq IS NOT NULL THEN
      IF finishes THEN
        is_bad := batch.was_failed + batch.failed + batch.was_cancelled + batch.cancelled > 0;
      ELSE
        is_bad := batch.was_failed + batch.was_cancelled > 0;
      END IF;
      c_batch := c_batch || array_fill(batch.parent_seq, ARRAY[4]);
      c_kind := c_kind || ARRAY['live', 'children', CASE WHEN is_bad THEN 'failed' ELSE 'completed' END,
                                'bad'];
      c_count := c_count || CASE WHEN reopens THEN ARRAY[1, 1, -1, 0]
                                 ELSE ARRAY[-1, -1, 1, is_bad::int] END;
    END IF;
    IF (reopens OR fails OR finishes) AND EXISTS (SELECT FROM {schema}.edge e WHERE e.source_seq = batch.seq) THEN
      touched := touched || batch.seq;
    END IF;
  END LOOP;
END $$;
