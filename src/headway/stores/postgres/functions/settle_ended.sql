-- settle_ended: count jobs that have ended in their batches, and settle their edges and what earlier verbs have left.
-- gives   as settle
-- takes   of each job that has ended its number, its batch, whether an edge comes from it, and its state
-- plan    most members of a batch have no edges, and neither end the batch nor make it fail: they are only counted
CREATE OR REPLACE FUNCTION {schema}.settle_ended_{version}(
  ns int, now_at bigint, alone boolean, unsettled boolean, m_seq bigint[], m_batch bigint[], m_awaited boolean[],
  m_state text[], s_task text[], s_tenant text[], s_step bigint[],
  OUT eligible int[], OUT told text[], OUT kinds text[], OUT counts bigint[], OUT remains boolean)
LANGUAGE plpgsql AS $$
DECLARE
  counted record;
  q_source bigint[];
  q_reached bigint[];
  q_state text[];
  c_batch bigint[];
  c_kind text[];
  c_count int[];
BEGIN
  SELECT array_agg(m.batch), array_agg(c.kind), array_agg(c.count) INTO c_batch, c_kind, c_count
    FROM (SELECT m.batch, m.state, count(*)::int AS ended
            FROM (SELECT unnest(m_batch) AS batch, unnest(m_state) AS state) m
           WHERE m.batch IS NOT NULL GROUP BY m.batch, m.state) m
   CROSS JOIN LATERAL (VALUES ('live', -m.ended),
                              (CASE m.state WHEN 'dead_letter' THEN 'failed' ELSE m.state END, m.ended),
                              ('bad', (m.state <> 'completed')::int)) c (kind, count);
  IF true = ANY (m_awaited) THEN
    SELECT array_agg(m.seq), array_agg(0::bigint),
           array_agg(CASE WHEN m.state = 'completed' THEN 'completed' ELSE 'failed' END)
      INTO q_source, q_reached, q_state
      FROM unnest(m_seq, m_awaited, m_state) m (seq, awaited, state) WHERE m.awaited;
  ELSIF NOT unsettled THEN
    SELECT * INTO counted FROM {schema}.count_batches_{version}(now_at, c_batch, c_kind, c_count);
    c_batch := counted.c_batch;
    c_kind := counted.c_kind;
    c_count := counted.c_count;
    q_source := counted.touched;
    IF q_source IS NOT NULL THEN
      q_reached := array_fill(0::bigint, ARRAY[cardinality(q_source)]);
      q_state := array_fill(NULL::text, ARRAY[cardinality(q_source)]);
    ELSIF c_batch IS NULL THEN
      remains := false;
      RETURN;
    END IF;
  END IF;
  SELECT s.eligible, s.told, s.kinds, s.counts, s.remains INTO eligible, told, kinds, counts, remains
    FROM {schema}.settle_{version}(ns, now_at, alone, unsettled, {settled_max}, q_source, q_reached, q_state, NULL,
                                   NULL, NULL, c_batch, c_kind, c_count, s_task, s_tenant, s_step) s;
END $$;
