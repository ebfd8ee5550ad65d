-- finish: end leases by reports of a worker.
-- gives   how many leases have ended, and how many of them were the asking worker's; the reports that were not newly
--         accepted, by index from 0; totals; which limits the leases counted against, once for each lease; and of the
--         jobs with a mark the number, the batch, whether an edge comes from it, and its end
-- holds   a report counts only on an equal token
-- takes   columns of the reports, by number and each number once; one with a single value stands for all of them
-- plan    a lease finds its report by searching the sorted numbers: of a join, what the server has learned of the lease
--         table, mostly after it was cleaned up, could make one that looks at all reports for every lease (30 to 60 µs
--         more a job)
CREATE OR REPLACE FUNCTION {schema}.finish_{version}(
  ns int, now_at bigint, asker text, binds boolean,
  f_seqs bigint[], f_tokens bytea[], f_states text[], f_results bytea[], f_attempts int[],
  f_crashes int[], f_timeouts bigint[], f_problems text[], f_errors text[], f_reasons text[],
  OUT ended int, OUT ended_own int, OUT refused int[], OUT answers text[], OUT kinds text[], OUT counts bigint[],
  OUT freed_keys text[],
  OUT m_seq bigint[], OUT m_batch bigint[], OUT m_awaited boolean[], OUT m_state text[])
LANGUAGE plpgsql AS $$
DECLARE
  completed int;
  accepted int[];
  uniques text[];
  others text[];
BEGIN
  WITH l AS (
    DELETE FROM {schema}.lease l
     WHERE l.seq = ANY (f_seqs) AND l.token = coalesce(f_tokens[width_bucket(l.seq, f_seqs)], f_tokens[1])
    RETURNING l.seq, l.token, l.worker_id, l.started_at, l.eligible_at, l.epoch, l.attempts, l.unique_key, l.cancel_at,
              l.progress, l.note, l.parked_for, l.parked_ms, l.batch_seq, l.awaited, l.limit_keys,
              width_bucket(l.seq, f_seqs) AS o),
  d AS NOT MATERIALIZED (
    SELECT l.seq, l.o, l.token, coalesce(f_states[l.o], f_states[1]) AS state, f_results[l.o] AS result,
           coalesce(f_attempts[l.o], f_attempts[1]) AS attempts, coalesce(f_crashes[l.o], f_crashes[1]) AS crashes,
           coalesce(f_timeouts[l.o], f_timeouts[1]) AS timeout_ms, f_problems[l.o] AS problem, f_errors[l.o] AS error,
           f_reasons[l.o] AS reason, l.worker_id, l.started_at, l.eligible_at, l.epoch, l.attempts AS number,
           l.unique_key, l.cancel_at, l.progress, l.note, l.parked_for, l.parked_ms, l.batch_seq, l.awaited FROM l),
  e AS (
    INSERT INTO {schema}.outcome (seq, finished_at, started_at, eligible_at, timeout_ms, cancel_at, parked_ms,
                                  progress, epoch, attempts, crashes, state, worker_id, token, note, reason, error,
                                  result_error, result, parked_for)
    SELECT d.seq, now_at, d.started_at, d.eligible_at, d.timeout_ms, d.cancel_at, d.parked_ms, d.progress, d.epoch,
           d.attempts, d.crashes, d.state, d.worker_id, d.token, d.note, d.reason, d.error, d.problem, d.result,
           d.parked_for FROM d),
  a AS (
    INSERT INTO {schema}.attempt (seq, started_at, ended_at, epoch, number, worker_id, reason, error)
    SELECT d.seq, d.started_at, now_at, d.epoch, d.number, d.worker_id, coalesce(d.reason, d.state), d.error FROM d
     WHERE d.error IS NOT NULL
        ON CONFLICT (seq, epoch) DO NOTHING)
  SELECT count(*), count(*) FILTER (WHERE d.worker_id = asker), count(*) FILTER (WHERE d.state = 'completed'),
         array_agg(d.o), array_agg(d.unique_key) FILTER (WHERE d.unique_key IS NOT NULL),
         array_agg(d.worker_id) FILTER (WHERE d.worker_id <> asker OR asker IS NULL),
         array_agg(d.state) FILTER (WHERE d.state <> 'completed'),
         CASE WHEN binds THEN (SELECT array_agg(k.key) FROM (SELECT unnest(l.limit_keys) AS key FROM l) k) END,
         array_agg(d.seq) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited),
         array_agg(d.batch_seq) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited),
         array_agg(d.awaited) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited),
         array_agg(d.state) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited)
    INTO ended, ended_own, completed, accepted, uniques, others, kinds, freed_keys, m_seq, m_batch, m_awaited, m_state
    FROM d;
  counts := array_fill(1::bigint, ARRAY[coalesce(cardinality(kinds), 0)]) || completed::bigint;
  kinds := kinds || 'completed'::text;
  IF uniques IS NOT NULL THEN
    DELETE FROM {schema}.unique_key u WHERE u.namespace_id = ns AND u.unique_key = ANY (uniques);
  END IF;
  IF others IS NOT NULL THEN
    UPDATE {schema}.worker w SET running = w.running - x.count
      FROM (SELECT o.worker_id, count(*) AS count FROM unnest(others) o (worker_id)
             GROUP BY o.worker_id) x WHERE w.worker_id = x.worker_id;
  END IF;
  IF ended < cardinality(f_seqs) THEN
    -- A report that was accepted before differs from a late one, and from that of a transient job, which leaves no row.
    SELECT array_agg((x.o - 1)::int ORDER BY x.o) FILTER (WHERE x.answer <> 'ok'),
           array_agg(x.answer ORDER BY x.o) FILTER (WHERE x.answer <> 'ok'),
           kinds || coalesce(array_agg('transient_' || x.state) FILTER (WHERE x.answer = 'ok'), '{}'),
           counts || coalesce(array_agg(1::bigint) FILTER (WHERE x.answer = 'ok'), '{}')
      INTO refused, answers, kinds, counts
      FROM (SELECT f.o, f.state,
                   CASE WHEN f.token = '' AND NOT EXISTS (SELECT FROM {schema}.job j WHERE j.seq = f.seq) THEN 'ok'
                        WHEN EXISTS (SELECT FROM {schema}.outcome o
                                      WHERE o.seq = f.seq AND o.token = f.token AND o.state = f.state) THEN 'same'
                        ELSE 'lost' END AS answer
              FROM (SELECT u.seq, coalesce(u.token, f_tokens[1]) AS token, coalesce(u.state, f_states[1]) AS state,
                           u.o
                      FROM unnest(f_seqs, f_tokens, f_states) WITH ORDINALITY u (seq, token, state, o)) f
             WHERE f.o <> ALL (coalesce(accepted, '{}'))) x;
  END IF;
END $$;
