-- end_queued: cancel jobs that wait or are delayed or held.
-- gives   those that were cancelled, which of them an edge comes from, their ids, and what changes in their batches
-- holds   it never waits: a job that another session is moving is left out
CREATE OR REPLACE FUNCTION {schema}.end_queued_{version}(
  ns int, now_at bigint, seqs bigint[], reasons text[],
  OUT e_seq bigint[], OUT e_awaited bigint[], OUT e_id text[],
  OUT c_batch bigint[], OUT c_kind text[], OUT c_count int[])
LANGUAGE plpgsql AS $$
DECLARE
  batches bigint[];
  held boolean[];
  uniques text[];
  left_class int[];
  left_park text[];
BEGIN
  WITH d AS (
    DELETE FROM {schema}.delayed d WHERE d.ctid = ANY (ARRAY(
      SELECT d.ctid FROM unnest(seqs) s (seq)
       CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = s.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT d.ctid FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = j.due_at
                              AND d.seq = j.seq FOR UPDATE SKIP LOCKED) d))
    RETURNING d.seq, d.due_at, NULL::bigint AS eligible_at, d.timeout_ms, d.epoch, d.attempts, d.crashes, d.token,
              d.error, 0 AS class_id, '' AS park),
  r AS (
    DELETE FROM {schema}.ready r WHERE r.ctid = ANY (ARRAY(
      SELECT r.ctid FROM unnest(seqs) s (seq)
       CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = s.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT r.ctid FROM {schema}.ready r WHERE r.class_id = j.class_id AND r.park = j.park
                              AND r.order_key = j.order_key AND r.seq = j.seq FOR UPDATE SKIP LOCKED) r))
    RETURNING r.seq, NULL::bigint, r.eligible_at, r.timeout_ms, r.epoch, r.attempts, r.crashes, r.token, r.error,
              r.class_id, r.park),
  e AS (SELECT * FROM d UNION ALL SELECT * FROM r),
  o AS (
    INSERT INTO {schema}.outcome (seq, finished_at, eligible_at, timeout_ms, epoch, attempts, crashes, state, token,
                                  error, reason)
    SELECT e.seq, now_at, e.eligible_at, e.timeout_ms, e.epoch, e.attempts, e.crashes, 'cancelled', e.token, e.error,
           reasons[array_position(seqs, e.seq)] FROM e)
  SELECT array_agg(e.seq), array_agg(e.seq) FILTER (WHERE j.awaited), array_agg(j.job_id),
         array_agg(j.batch_seq) FILTER (WHERE j.batch_seq IS NOT NULL),
         array_agg(e.due_at IS NOT DISTINCT FROM {held_at}) FILTER (WHERE j.batch_seq IS NOT NULL),
         array_agg(j.unique_key) FILTER (WHERE j.unique_key IS NOT NULL),
         array_agg(e.class_id) FILTER (WHERE e.park <> ''), array_agg(e.park) FILTER (WHERE e.park <> '')
    INTO e_seq, e_awaited, e_id, batches, held, uniques, left_class, left_park
    FROM (SELECT e.* FROM e ORDER BY array_position(seqs, e.seq)) e
   CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = e.seq OFFSET 0) j;
  IF batches IS NOT NULL THEN
    SELECT array_agg(x.batch), array_agg(x.kind), array_agg(x.count) INTO c_batch, c_kind, c_count
      FROM (SELECT x.batch, k.kind, sum(k.count)::int AS count FROM unnest(batches, held) x (batch, held)
             CROSS JOIN LATERAL (VALUES ('live', -1), ('held', -x.held::int), ('cancelled', 1), ('bad', 1))
                   k (kind, count)
             GROUP BY x.batch, k.kind) x;
  END IF;
  IF uniques IS NOT NULL THEN
    DELETE FROM {schema}.unique_key u WHERE u.namespace_id = ns AND u.unique_key = ANY (uniques);
  END IF;
  IF left_park IS NOT NULL THEN
    WITH h AS (
      SELECT p.class_id, p.park, r.order_key, r.seq
        FROM (SELECT DISTINCT p.class_id, p.park FROM unnest(left_class, left_park) p (class_id, park)) p
        LEFT JOIN LATERAL (SELECT r.order_key, r.seq FROM {schema}.ready r
                            WHERE r.class_id = p.class_id AND r.park = p.park
                            ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) r ON true),
    moved AS (UPDATE {schema}.park p SET head_key = h.order_key, head_seq = h.seq FROM h
               WHERE p.namespace_id = ns AND p.park = h.park AND p.class_id = h.class_id AND h.seq IS NOT NULL)
    DELETE FROM {schema}.park p USING h
     WHERE p.namespace_id = ns AND p.park = h.park AND p.class_id = h.class_id AND h.seq IS NULL;
  END IF;
END $$;
