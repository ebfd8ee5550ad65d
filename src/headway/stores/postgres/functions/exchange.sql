-- exchange: end leases, note progress, claim by the plan and picture what waits, in one step.
--         For a namespace in which only their order holds jobs back: no limits, ladder or reserve, no park,
--         nothing that has fallen due.
-- gives   a status: ok, or, with nothing done, stale (other rules are in force) or else (it must be done statement by
--         statement); whether this claim was made before; the leases, take by take and each in order; and for every
--         take how far it reached
-- holds   a report counts only on an equal token; never more leases than the totals, nor than the worker has slots;
--         a repeated call waits for its first try, since both lock the worker
-- takes   columns of the reports, by number and each number once; one with a single value stands for all of them. Their
--         ids only where transient ones are among them
-- plan    the worker's row is looked for where this process left it: while old versions cannot be cleared away, its
--         index leads to all of them. Walks ready by its primary key from the floor of each class on: rows that are
--         gone lie before it. A lease finds its report by searching the sorted numbers: of a join, what the server has
--         learned of the lease table, mostly after it was cleaned up, could make one that looks at all reports for
--         every lease (30 to 60 µs more a job)
CREATE OR REPLACE FUNCTION {schema}.exchange_{version}(
  ns int, at bigint, rules bigint, asker text, known_spot tid, claim bytea,
  f_ids text[], f_seqs bigint[], f_tokens bytea[], f_states text[], f_results bytea[], f_attempts int[],
  f_crashes int[], f_timeouts bigint[], f_problems text[], f_errors text[], f_reasons text[],
  p_ids text[], p_seqs bigint[], p_tokens bytea[], p_fractions double precision[], p_notes text[],
  claims boolean, free int, free_below int, leave_free boolean, classes int,
  t_class int[], t_most int[], t_below boolean[], t_until bigint[], t_label text[], t_floor bigint[], t_rewound int[],
  look int, waits boolean, lanes text[], pictured boolean, bound int, passed_max int,
  OUT status text, OUT now_at bigint, OUT state text, OUT again boolean, OUT more boolean, OUT refused int[],
  OUT answers text[],
  OUT l_take int[], OUT l_seq bigint[], OUT l_id text[], OUT l_task text[], OUT l_payload bytea[], OUT l_tenant text[],
  OUT l_trace text[], OUT l_retries int[], OUT l_asked bigint[], OUT l_submitted bigint[], OUT l_more text[],
  OUT reached bigint[], OUT rewound int[], OUT looked_us bigint, OUT spot tid, OUT picture text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
   SET enable_hashjoin = off
  SET enable_mergejoin = off AS $$
DECLARE
  me record;
  others text[];
  ended int := 0;
  ended_own int := 0;
  taken int[];
  freed text[];
  c_ids int[];
  c_rewound int[];
  c_fair boolean[];
  c_persist boolean[];
  kinds text[] := '{}';
  counts bigint[] := '{}';
  told text[] := p_ids;
  outdated boolean := false;
  claimed int := 0;
  kept int := 0;        -- Of those claimed: how many are kept, so that they hold a lease.
  watched boolean;
  expiring boolean;     -- Some job's time is over.
  well int;             -- How many have completed.
  tries int;
  k int;
  want int;
  got int;
  passed int;
  asked int;
  from_key bigint;
  top bigint;
  spots tid[];
  any_expired boolean;
  gone text[];
  gone_keys text[];
  began timestamptz;
  size int;
BEGIN
  PERFORM pg_advisory_xact_lock_shared({lock}, ns);
  now_at := {schema}.now_ms_{version}(at);
  more := false;
  again := false;
  looked_us := 0;
  SELECT CASE WHEN n.rules IS DISTINCT FROM exchange_{version}.rules THEN 'stale'
              WHEN EXISTS (SELECT FROM {schema}.park p WHERE p.namespace_id = ns)
                OR EXISTS (SELECT FROM {schema}.delayed d
                            WHERE d.namespace_id = ns AND d.due_at <= exchange_{version}.now_at) THEN 'else'
              ELSE 'ok' END,
         EXISTS (SELECT FROM {schema}.watcher w WHERE w.namespace_id = ns),
         EXISTS (SELECT FROM {schema}.expiry e WHERE e.namespace_id = ns AND e.expires_at <= exchange_{version}.now_at)
    INTO status, watched, expiring FROM {schema}.namespace n WHERE n.namespace_id = ns;
  IF status <> 'ok' THEN
    RETURN;
  END IF;
  state := 'dead';
  SELECT w.state, w.lease_ends_at, w.slots, w.running, w.claim_id, w.waiting, w.wait_lanes, w.ctid INTO me
    FROM {schema}.worker w WHERE w.ctid = known_spot AND w.worker_id = asker AND w.namespace_id = ns FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    SELECT w.state, w.lease_ends_at, w.slots, w.running, w.claim_id, w.waiting, w.wait_lanes, w.ctid INTO me
      FROM {schema}.worker w WHERE w.worker_id = asker AND w.namespace_id = ns FOR NO KEY UPDATE;
  END IF;
  IF FOUND THEN
    state := me.state;
    spot := me.ctid;
    IF state = 'active' AND me.lease_ends_at <= now_at THEN  -- It is alive, so the clock has stepped: let it renew.
      PERFORM {schema}.notify_{version}(ns, 'k', asker);
    END IF;
  END IF;

  IF f_seqs IS NOT NULL THEN
    WITH l AS (
      DELETE FROM {schema}.lease l
       WHERE l.seq = ANY (f_seqs) AND l.token = coalesce(f_tokens[width_bucket(l.seq, f_seqs)], f_tokens[1])
      RETURNING l.*, width_bucket(l.seq, f_seqs) AS o),
    d AS NOT MATERIALIZED (
      SELECT l.seq, l.o, l.token, coalesce(f_states[l.o], f_states[1]) AS state, f_results[l.o] AS result,
             coalesce(f_attempts[l.o], f_attempts[1]) AS attempts, coalesce(f_crashes[l.o], f_crashes[1]) AS crashes,
             coalesce(f_timeouts[l.o], f_timeouts[1]) AS timeout_ms, f_problems[l.o] AS problem, f_errors[l.o] AS error,
             f_reasons[l.o] AS reason, l.worker_id, l.started_at, l.eligible_at, l.epoch, l.attempts AS number,
             l.unique_key, l.cancel_at, l.progress, l.note, l.parked_for, l.parked_ms FROM l),
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
           array_agg(d.state) FILTER (WHERE d.state <> 'completed')
      INTO ended, ended_own, well, taken, freed, others, kinds FROM d;
    counts := array_fill(1::bigint, ARRAY[coalesce(cardinality(kinds), 0)]) || well::bigint;
    kinds := kinds || 'completed'::text;
    IF freed IS NOT NULL THEN
      DELETE FROM {schema}.unique_key u WHERE u.namespace_id = ns AND u.unique_key = ANY (freed);
    END IF;
    IF others IS NOT NULL THEN
      UPDATE {schema}.worker w SET running = w.running - x.count
        FROM (SELECT o.worker_id, count(*) AS count FROM unnest(others) o (worker_id)
               GROUP BY o.worker_id) x WHERE w.worker_id = x.worker_id;
    END IF;
    IF ended < cardinality(f_seqs) THEN
      -- Told by itself from a report that was taken before, and from a transient job, of which nothing is kept.
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
               WHERE f.o <> ALL (coalesce(taken, '{}'))) x;
    END IF;
  END IF;
  IF p_seqs IS NOT NULL THEN
    UPDATE {schema}.lease l SET progress = p.fraction, note = p.note
      FROM unnest(p_seqs, p_tokens, p_fractions, p_notes) p (seq, token, fraction, note)
     WHERE l.seq = p.seq AND l.token = p.token;
  END IF;

  IF claims THEN
    SELECT array_agg(c.class_id), array_agg(c.rewound), array_agg(c.fair), array_agg(c.persist)
      INTO c_ids, c_rewound, c_fair, c_persist
      FROM {schema}.class c WHERE c.namespace_id = ns;
    outdated := classes < coalesce(cardinality(c_ids), 0);
    rewound := t_rewound;
    FOR i IN 1 .. coalesce(cardinality(t_class), 0) LOOP
      k := array_position(c_ids, t_class[i]);
      IF t_rewound[i] IS DISTINCT FROM c_rewound[k] THEN
        rewound[i] := c_rewound[k];
        t_floor[i] := -9223372036854775808;
      END IF;
    END LOOP;
    reached := t_floor;
  END IF;
  IF claims AND NOT outdated AND me.state = 'active' AND me.lease_ends_at > now_at THEN
    IF me.claim_id = claim THEN
      again := true;
    ELSE
      free := least(free, me.slots - me.running + ended_own);
      tries := 1;
      LOOP
        IF look = 2 THEN
          began := clock_timestamp();
        END IF;
        FOR i IN 1 .. coalesce(cardinality(t_class), 0) LOOP
          want := least(t_most[i], free, CASE WHEN t_below[i] THEN free_below ELSE free END);
          CONTINUE WHEN want <= 0;
          k := array_position(c_ids, t_class[i]);
          CONTINUE WHEN k IS NULL;
          got := 0;
          passed := 0;
          IF NOT c_persist[k] THEN
            WITH t AS (
              DELETE FROM {schema}.transient WHERE ctid = ANY (ARRAY(
                SELECT t.ctid FROM {schema}.transient t WHERE t.class_id = t_class[i]
                 ORDER BY t.class_id, t.seq LIMIT want FOR UPDATE SKIP LOCKED))
              RETURNING *)
            SELECT count(*)::int, l_seq || array_agg(s.seq), l_id || array_agg(s.job_id), l_task || array_agg(s.task),
                   l_payload || array_agg(s.payload), l_tenant || array_agg(s.tenant), l_trace || array_agg(s.trace_id),
                   l_retries || array_agg(0), l_asked || array_agg(s.timeout_ms), l_submitted || array_agg(0::bigint),
                   l_more || array_agg(NULL::text)
              INTO got, l_seq, l_id, l_task, l_payload, l_tenant, l_trace, l_retries, l_asked, l_submitted, l_more
              FROM (SELECT * FROM t ORDER BY t.seq) s;
          ELSE
            from_key := CASE WHEN look = 2 THEN -9223372036854775808 ELSE t_floor[i] END;
            LOOP
              asked := CASE WHEN passed = 0 THEN want - got ELSE least(want - got, passed_max - passed) END;
              IF t_until[i] IS NULL AND NOT expiring THEN
                spots := NULL;
              ELSIF t_until[i] IS NULL THEN
                SELECT array_agg(x.ctid), coalesce(bool_or(x.expires_at <= now_at), false) INTO spots, any_expired
                  FROM (SELECT r.ctid, r.expires_at FROM {schema}.ready r
                         WHERE r.class_id = t_class[i] AND r.park = '' AND r.order_key >= from_key
                         ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT asked FOR UPDATE SKIP LOCKED) x;
              ELSE
                SELECT array_agg(y.ctid), coalesce(bool_or(y.expires_at <= now_at), false) INTO spots, any_expired
                  FROM (SELECT x.*, bool_and(x.eligible_at <= t_until[i]) OVER (ORDER BY x.order_key, x.seq) AS early
                          FROM (SELECT r.ctid, r.expires_at, r.eligible_at, r.order_key, r.seq FROM {schema}.ready r
                                 WHERE r.class_id = t_class[i] AND r.park = '' AND r.order_key >= from_key
                                 ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT asked
                                   FOR UPDATE SKIP LOCKED) x) y WHERE y.early;
              END IF;
              EXIT WHEN spots IS NULL AND (expiring OR t_until[i] IS NOT NULL);
              IF any_expired THEN
                WITH c AS (DELETE FROM {schema}.ready r WHERE r.ctid = ANY (spots) AND r.expires_at <= now_at
                           RETURNING *),
                e AS (INSERT INTO {schema}.outcome (seq, finished_at, eligible_at, timeout_ms, epoch, attempts, crashes,
                                                    state, token, error, reason)
                      SELECT c.seq, now_at, c.eligible_at, c.timeout_ms, c.epoch, c.attempts, c.crashes, 'cancelled',
                             c.token, c.error, 'expired' FROM c)
                SELECT array_agg(j.job_id), array_agg(c.unique_key) FILTER (WHERE c.unique_key IS NOT NULL)
                  INTO gone, gone_keys
                  FROM c JOIN {schema}.job j ON j.seq = c.seq;
                passed := passed + cardinality(gone);
                told := told || gone;
                kinds := kinds || 'cancelled'::text;
                counts := counts || cardinality(gone)::bigint;
                DELETE FROM {schema}.unique_key u WHERE u.namespace_id = ns AND u.unique_key = ANY (gone_keys);
              END IF;
              IF spots IS NULL THEN  -- Nothing can be in the way.
                WITH c AS (DELETE FROM {schema}.ready WHERE ctid = ANY (ARRAY(
                  SELECT r.ctid FROM {schema}.ready r WHERE r.class_id = t_class[i] AND r.park = ''
                     AND r.order_key >= from_key
                   ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT asked FOR UPDATE SKIP LOCKED)) RETURNING *),
                l AS (
                  INSERT INTO {schema}.lease (seq, order_key, started_at, eligible_at, timeout_ms, class_id, epoch,
                                              attempts, crashes, token, worker_id, tenant, unique_key)
                  SELECT c.seq, c.order_key, now_at, c.eligible_at, c.timeout_ms, c.class_id, c.epoch + 1,
                         c.attempts + 1, c.crashes, claim, asker,
                         CASE WHEN c_fair[k] THEN coalesce(c.tenant, '') END, c.unique_key FROM c)
                SELECT count(*)::int, max(s.order_key), l_seq || array_agg(s.seq), l_id || array_agg(s.job_id),
                       l_task || array_agg(s.task), l_payload || array_agg(s.payload), l_tenant || array_agg(s.tenant),
                       l_trace || array_agg(s.trace_id), l_retries || array_agg(s.max_retries),
                       l_asked || array_agg(s.asked), l_submitted || array_agg(s.submitted_at),
                       l_more || array_agg(s.more)
                  INTO size, top, l_seq, l_id, l_task, l_payload, l_tenant, l_trace, l_retries, l_asked, l_submitted,
                      l_more
                  FROM (SELECT c.seq, c.order_key, j.job_id, j.task, j.payload, j.tenant, j.trace_id, j.max_retries,
                               j.timeout_ms AS asked, j.submitted_at,
                               CASE WHEN c.epoch > 0 OR c.timeout_ms IS NOT NULL OR j.retry IS NOT NULL
                                      OR c.eligible_at <> j.submitted_at
                                    THEN json_build_array(c.epoch + 1, c.attempts + 1, c.crashes,
                                                          coalesce(c.timeout_ms, j.timeout_ms), j.retry,
                                                          c.eligible_at)::text
                                END AS more
                          FROM c JOIN {schema}.job j ON j.seq = c.seq ORDER BY c.order_key, c.seq) s;
              ELSE
                WITH c AS (DELETE FROM {schema}.ready r WHERE r.ctid = ANY (spots) RETURNING *),
                l AS (
                  INSERT INTO {schema}.lease (seq, order_key, started_at, eligible_at, timeout_ms, class_id, epoch,
                                              attempts, crashes, token, worker_id, tenant, unique_key)
                  SELECT c.seq, c.order_key, now_at, c.eligible_at, c.timeout_ms, c.class_id, c.epoch + 1,
                         c.attempts + 1, c.crashes, claim, asker,
                         CASE WHEN c_fair[k] THEN coalesce(c.tenant, '') END, c.unique_key FROM c)
                SELECT count(*)::int, max(s.order_key), l_seq || array_agg(s.seq), l_id || array_agg(s.job_id),
                       l_task || array_agg(s.task), l_payload || array_agg(s.payload), l_tenant || array_agg(s.tenant),
                       l_trace || array_agg(s.trace_id), l_retries || array_agg(s.max_retries),
                       l_asked || array_agg(s.asked), l_submitted || array_agg(s.submitted_at),
                       l_more || array_agg(s.more)
                  INTO size, top, l_seq, l_id, l_task, l_payload, l_tenant, l_trace, l_retries, l_asked, l_submitted,
                      l_more
                  FROM (SELECT c.seq, c.order_key, j.job_id, j.task, j.payload, j.tenant, j.trace_id, j.max_retries,
                               j.timeout_ms AS asked, j.submitted_at,
                               CASE WHEN c.epoch > 0 OR c.timeout_ms IS NOT NULL OR j.retry IS NOT NULL
                                      OR c.eligible_at <> j.submitted_at
                                    THEN json_build_array(c.epoch + 1, c.attempts + 1, c.crashes,
                                                          coalesce(c.timeout_ms, j.timeout_ms), j.retry,
                                                          c.eligible_at)::text
                                END AS more
                          FROM c JOIN {schema}.job j ON j.seq = c.seq ORDER BY c.order_key, c.seq) s;
              END IF;
              IF size > 0 THEN
                got := got + size;
                reached[i] := top;
              END IF;
              EXIT WHEN spots IS NULL OR got >= want OR cardinality(spots) < asked;
              IF passed >= passed_max THEN
                more := EXISTS (SELECT FROM {schema}.ready r
                                 WHERE r.class_id = t_class[i] AND r.park = '' AND r.order_key >= from_key
                                   AND r.eligible_at <= coalesce(t_until[i], r.eligible_at));
                EXIT;
              END IF;
            END LOOP;
            kept := kept + got;
            IF got > 0 AND c_fair[k] THEN
              UPDATE {schema}.class c SET clock = reached[i] WHERE c.class_id = t_class[i] AND c.clock < reached[i];
            END IF;
          END IF;
          IF got > 0 THEN
            l_take := l_take || array_fill(i - 1, ARRAY[got]);
            claimed := claimed + got;
            IF t_label[i] IS NOT NULL THEN
              kinds := kinds || t_label[i];
              counts := counts || got::bigint;
            END IF;
            free := free - got;
            IF t_below[i] OR leave_free THEN
              free_below := free_below - got;
            END IF;
          END IF;
        END LOOP;
        IF look = 2 THEN
          looked_us := looked_us + 1 + (extract(epoch FROM clock_timestamp() - began) * 1000000)::bigint;
        END IF;
        EXIT WHEN claimed > 0 OR more;
        IF look = 1 THEN
          look := 2;  -- What was committed late, or given back by a transaction that failed, lies below the floors.
          CONTINUE;
        END IF;
        EXIT WHEN tries = 2 OR NOT waits OR (me.waiting IS NOT NULL AND me.wait_lanes IS NOT DISTINCT FROM lanes);
        -- A submit from now on sees that this worker waits; what was submitted before, the worker sees now.
        PERFORM pg_advisory_xact_lock({gate}, ns);
        tries := 2;
      END LOOP;
      IF claimed > 0 THEN
        kinds := kinds || 'claimed'::text;
        counts := counts || claimed::bigint;
        UPDATE {schema}.worker w SET claim_id = claim, waiting = NULL, running = w.running + kept - ended_own
         WHERE w.ctid = me.ctid RETURNING w.ctid INTO spot;
      ELSIF waits AND NOT more THEN
        IF me.waiting IS NULL OR me.wait_lanes IS DISTINCT FROM lanes THEN
          UPDATE {schema}.worker w SET waiting = nextval('{schema}.turn'), wait_lanes = lanes,
              running = w.running - ended_own WHERE w.ctid = me.ctid RETURNING w.ctid INTO spot;
        ELSIF ended_own > 0 THEN
          UPDATE {schema}.worker w SET running = w.running - ended_own WHERE w.ctid = me.ctid
          RETURNING w.ctid INTO spot;
        END IF;
      ELSIF me.waiting IS NOT NULL OR ended_own > 0 THEN
        UPDATE {schema}.worker w SET waiting = NULL, running = w.running - ended_own WHERE w.ctid = me.ctid
        RETURNING w.ctid INTO spot;
      END IF;
      ended_own := 0;
    END IF;
  END IF;
  IF ended_own > 0 THEN
    UPDATE {schema}.worker w SET running = w.running - ended_own WHERE w.ctid = me.ctid RETURNING w.ctid INTO spot;
  END IF;
  IF cardinality(kinds) > 0 THEN
    PERFORM {schema}.count_up_{version}(ns, now_at, kinds, counts, false);
  END IF;
  IF watched THEN
    IF f_ids IS NULL AND f_seqs IS NOT NULL THEN
      f_ids := ARRAY(SELECT j.job_id FROM {schema}.job j WHERE j.seq = ANY (f_seqs));
    END IF;
    PERFORM {schema}.notify_jobs_{version}(ns, f_ids || told || l_id);
  END IF;
  IF pictured OR outdated THEN
    picture := {schema}.snapshot_{version}(ns, now_at, bound, t_class, reached, rewound);
  END IF;
END $$;
