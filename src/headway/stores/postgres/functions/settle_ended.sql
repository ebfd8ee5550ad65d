-- settle_ended: count jobs that have ended in their batches, and settle their edges and what earlier verbs have left.
-- gives   as settle
-- takes   of each job that has ended its number, its batch, whether an edge comes from it, and its state
CREATE OR REPLACE FUNCTION {schema}.settle_ended_{version}(
  ns int, now_at bigint, alone boolean, unsettled boolean, m_seq bigint[], m_batch bigint[], m_awaited boolean[], m_state text[],
  s_task text[], s_tenant text[], s_step bigint[],
  OUT eligible int[], OUT told text[], OUT kinds text[], OUT counts bigint[], OUT remains boolean)
LANGUAGE plpgsql AS $$
DECLARE
  q_source bigint[];
  q_reached bigint[];
  q_state text[];
  c_batch bigint[];
  c_kind text[];
  c_count int[];
BEGIN
  SELECT array_agg(m.seq), array_agg(0::bigint),
         array_agg(CASE WHEN m.state = 'completed' THEN 'completed' ELSE 'failed' END)
    INTO q_source, q_reached, q_state
    FROM unnest(m_seq, m_awaited, m_state) m (seq, awaited, state) WHERE m.awaited;
  SELECT array_agg(x.batch), array_agg(x.kind), array_agg(x.count) INTO c_batch, c_kind, c_count
    FROM (SELECT m.batch, k.kind, sum(k.count)::int AS count FROM unnest(m_batch, m_state) m (batch, state)
           CROSS JOIN LATERAL (VALUES ('live', -1), (CASE m.state WHEN 'dead_letter' THEN 'failed' ELSE m.state END, 1),
                                      ('bad', (m.state <> 'completed')::int)) k (kind, count)
           WHERE m.batch IS NOT NULL GROUP BY m.batch, k.kind) x;
  SELECT s.eligible, s.told, s.kinds, s.counts, s.remains INTO eligible, told, kinds, counts, remains
    FROM {schema}.settle_{version}(ns, now_at, alone, unsettled, {settled_max}, q_source, q_reached, q_state, NULL, NULL, NULL,
                                   c_batch, c_kind, c_count, s_task, s_tenant, s_step) s;
END $$;
