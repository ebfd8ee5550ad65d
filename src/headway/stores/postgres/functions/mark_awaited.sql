-- mark_awaited: note that an edge comes from jobs, where each of them is.
-- gives   the jobs that another session is moving and that have no mark yet
-- holds   it never waits. A session that moves a job takes the row of its place first and then the job's, as this does:
--         so it either finds the mark or has the job to itself, and then the source stays unsettled
CREATE OR REPLACE FUNCTION {schema}.mark_awaited_{version}(ns int, seqs bigint[]) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  found bigint[];
BEGIN
  seqs := ARRAY(SELECT j.seq FROM {schema}.job j WHERE j.seq = ANY (seqs) AND j.awaited IS NOT TRUE ORDER BY j.seq);
  IF seqs = '{}' THEN
    RETURN seqs;
  END IF;
  WITH l AS (
    UPDATE {schema}.lease l SET awaited = true WHERE l.ctid = ANY (ARRAY(
      SELECT l.ctid FROM {schema}.lease l WHERE l.seq = ANY (seqs) FOR UPDATE SKIP LOCKED)) RETURNING l.seq),
  r AS (
    UPDATE {schema}.ready r SET awaited = true WHERE r.ctid = ANY (ARRAY(
      SELECT r.ctid FROM unnest(seqs) s (seq)
       CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = s.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT r.ctid FROM {schema}.ready r WHERE r.class_id = j.class_id AND r.park = j.park
                              AND r.order_key = j.order_key AND r.seq = j.seq FOR UPDATE SKIP LOCKED) r))
    RETURNING r.seq),
  d AS (
    SELECT d.seq FROM unnest(seqs) s (seq)
     CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = s.seq OFFSET 0) j
     CROSS JOIN LATERAL (SELECT d.seq FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = j.due_at
                            AND d.seq = j.seq FOR UPDATE SKIP LOCKED) d),
  o AS (SELECT o.seq FROM {schema}.outcome o WHERE o.seq = ANY (seqs) FOR UPDATE SKIP LOCKED)
  SELECT array_agg(x.seq) INTO found
    FROM (SELECT l.seq FROM l UNION ALL SELECT r.seq FROM r UNION ALL SELECT d.seq FROM d UNION ALL SELECT o.seq FROM o) x;
  UPDATE {schema}.job j SET awaited = true WHERE j.seq = ANY (found);
  RETURN ARRAY(SELECT s.seq FROM unnest(seqs) s (seq) WHERE s.seq <> ALL (coalesce(found, '{}')));
END $$;
