-- exchange: end leases, record progress, claim by the plan and read a snapshot of what waits, in one step.
-- gives   a status: ok, or with nothing done stale (other rules are in force), alone (jobs are in blocked queues, and
--         the caller did not ask to be alone) or due (delayed jobs have fallen due and must become eligible first);
--         or it raises HW004 if it must hold the flow lock from its start
--         whether this claim was made before; the leases, take by take and each in order; and for every take how far
--         its line was taken
-- holds   never more leases than the totals, nor than the worker has slots; a repeated call waits for its first try,
--         since both lock the worker. Where rules bind, no other process is in the namespace
-- takes   columns of the reports, as finish takes them, with their ids only where transient ones are among them; rules,
--         as claim takes them; the rungs of the ladder, and the slots of a pool's reserve
-- plan    the worker's row is looked for where this process left it: while old versions cannot be cleared away, its
--         index leads to all of them
CREATE OR REPLACE FUNCTION {schema}.exchange_{version}(
  ns int, at bigint, rules bigint, binds boolean, is_due_done boolean, settles boolean, asker text, known_spot tid,
  claim bytea,
  f_ids text[], f_seqs bigint[], f_tokens bytea[], f_states text[], f_results bytea[], f_attempts int[],
  f_crashes int[], f_timeouts bigint[], f_problems text[], f_errors text[], f_reasons text[],
  p_ids text[], p_seqs bigint[], p_tokens bytea[], p_fractions double precision[], p_notes text[],
  claims boolean, free int, free_below int, leave_free boolean, classes int,
  t_class int[], t_most int[], t_below boolean[], t_until bigint[], t_label text[], t_floor bigint[], t_rewound int[],
  t_rung int[], t_pool boolean[],
  r_name text[], r_prefix text[], r_limit int[], r_interval bigint[], r_burst bigint[], r_tenant boolean[],
  k_task text[], k_rules text[], k_default text, paused_tasks text[], paused_tenants text[],
  rung_names text[], rung_limits int[], rung_percents double precision[], pool_slots int, pool_lanes text[],
  s_task text[], s_tenant text[], s_step bigint[],
  look int, waits boolean, lanes text[], pictured boolean, bound int, skipped_max int,
  OUT status text, OUT now_at bigint, OUT state text, OUT again boolean, OUT more boolean, OUT refused int[],
  OUT answers text[],
  OUT l_take int[], OUT l_seq bigint[], OUT l_id text[], OUT l_task text[], OUT l_payload bytea[], OUT l_tenant text[],
  OUT l_trace text[], OUT l_retries int[], OUT l_asked bigint[], OUT l_submitted bigint[], OUT l_more text[],
  OUT l_rung text[], OUT l_damaged text[],
  OUT b_job bigint[], OUT b_of bigint[], OUT b_seq bigint[], OUT b_id text[],
  OUT reached bigint[], OUT rewound int[], OUT looked_us bigint, OUT spot tid, OUT picture text)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
   SET enable_hashjoin = off
  SET enable_mergejoin = off AS $$
DECLARE
  me record;
  done record;
  part record;
  ended int := 0;
  ended_own int := 0;
  c_ids int[];
  c_rewound int[];
  c_fair boolean[];
  c_persist boolean[];
  kinds text[] := '{}';
  counts bigint[] := '{}';
  told text[] := p_ids;
  eligible int[];       -- The classes of jobs that may start now.
  opened int[];
  usage_keys text[];    -- What changes in limit_usage.
  usage_deltas int[];
  rung_counts int[];
  slots int;
  has_blocked boolean;
  outdated boolean := false;
  claimed int := 0;
  kept int := 0;        -- Of those claimed: how many are kept, so that they hold a lease.
  watched boolean;
  unsettled boolean;    -- Earlier verbs have left edges to settle, or members to cancel.
  moved record;
  remains boolean := false;
  m_seq bigint[];       -- The jobs with a mark that reports, and then claims, have ended.
  m_batch bigint[];
  m_awaited boolean[];
  m_state text[];
  tries int;
  k int;
  want int;
  got int;
  began timestamptz;
BEGIN
  IF binds THEN
    PERFORM pg_advisory_xact_lock({lock}, ns);
  ELSE
    PERFORM pg_advisory_xact_lock_shared({lock}, ns);
  END IF;
  now_at := {schema}.now_ms_{version}(at);
  more := false;
  again := false;
  looked_us := 0;
  SELECT CASE WHEN n.rules IS DISTINCT FROM exchange_{version}.rules THEN 'stale'
              WHEN NOT is_due_done AND EXISTS (SELECT FROM {schema}.delayed d
                                                WHERE d.namespace_id = ns AND d.due_at <= exchange_{version}.now_at)
              THEN 'due' ELSE 'ok' END,
         EXISTS (SELECT FROM {schema}.park p WHERE p.namespace_id = ns),
         EXISTS (SELECT FROM {schema}.watcher w WHERE w.namespace_id = ns),
         EXISTS (SELECT FROM {schema}.unsettled u WHERE u.namespace_id = ns)
    INTO status, has_blocked, watched, unsettled FROM {schema}.namespace n WHERE n.namespace_id = ns;
  IF status = 'ok' AND has_blocked AND NOT binds THEN
    status := 'alone';
  END IF;
  IF status <> 'ok' THEN
    RETURN;
  END IF;
  IF settles THEN
    PERFORM pg_advisory_xact_lock({flow}, ns);
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
    SELECT * INTO done FROM {schema}.finish_{version}(ns, now_at, asker, binds, f_seqs, f_tokens, f_states, f_results,
                                                   f_attempts, f_crashes, f_timeouts, f_problems, f_errors, f_reasons);
    ended := done.ended;
    ended_own := done.ended_own;
    refused := done.refused;
    answers := done.answers;
    kinds := done.kinds;
    counts := done.counts;
    m_seq := done.m_seq;
    m_batch := done.m_batch;
    m_awaited := done.m_awaited;
    m_state := done.m_state;
    usage_keys := done.freed_keys;
    usage_deltas := array_fill(-1, ARRAY[coalesce(cardinality(usage_keys), 0)]);
    IF has_blocked AND usage_keys IS NOT NULL THEN
      WITH p AS (UPDATE {schema}.park p SET open = true
                  WHERE p.namespace_id = ns AND p.park = ANY (done.freed_keys) AND NOT p.open AND p.open_at IS NULL
                 RETURNING p.class_id)
      SELECT array_agg(p.class_id) INTO eligible FROM p;
    END IF;
    IF ended > 0 AND (rung_names IS NOT NULL OR pool_slots IS NOT NULL) THEN
      eligible := eligible || ARRAY(
        SELECT c.class_id FROM {schema}.class c
         WHERE c.namespace_id = ns AND c.persist
           AND (rung_names IS NOT NULL AND c.rung <> '' OR c.lane <> ALL (pool_lanes))
           AND EXISTS (SELECT FROM {schema}.ready r WHERE r.class_id = c.class_id AND r.park = '')
         ORDER BY c.lane, c.needs, c.rung);
    END IF;
  END IF;
  IF m_seq IS NOT NULL OR unsettled THEN
    -- An exchange that has ended a job with a mark waits for its turn to settle. One that only finds something left
    -- takes the turn if it is free.
    IF m_seq IS NOT NULL THEN
      PERFORM pg_advisory_xact_lock({flow}, ns);
      settles := true;
    ELSE
      settles := settles OR pg_try_advisory_xact_lock({flow}, ns);
    END IF;
    remains := true;
    IF settles THEN
      SELECT * INTO moved FROM {schema}.settle_ended_{version}(
        ns, now_at, binds, unsettled, m_seq, m_batch, m_awaited, m_state, s_task, s_tenant, s_step);
      eligible := eligible || moved.eligible;
      told := told || moved.told;
      kinds := kinds || moved.kinds;
      counts := counts || moved.counts;
      remains := moved.remains;
      m_seq := NULL;
      m_batch := NULL;
      m_awaited := NULL;
    END IF;
  END IF;
  IF p_seqs IS NOT NULL THEN
    UPDATE {schema}.lease l SET progress = p.fraction, note = p.note
      FROM unnest(p_seqs, p_tokens, p_fractions, p_notes) p (seq, token, fraction, note)
     WHERE l.seq = p.seq AND l.token = p.token;
  END IF;
  IF has_blocked THEN
    UPDATE {schema}.park p SET open = true, open_at = NULL WHERE p.namespace_id = ns AND p.open_at <= now_at;
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
      IF rung_names IS NOT NULL OR pool_slots IS NOT NULL THEN
        SELECT coalesce(sum(w.slots), 0) INTO slots FROM {schema}.worker w
         WHERE w.namespace_id = ns AND w.state = 'active' AND w.lease_ends_at > now_at;
        rung_limits := ARRAY(SELECT CASE WHEN r.percent IS NULL THEN r.most
                                         ELSE greatest(1, floor(slots * r.percent / 100 + 1e-9))::int END
                               FROM unnest(rung_limits, rung_percents) WITH ORDINALITY r (most, percent, o)
                              ORDER BY r.o);
        SELECT array_agg(x.used ORDER BY x.o) FILTER (WHERE x.o <= coalesce(cardinality(rung_names), 0)),
               CASE WHEN pool_slots IS NULL THEN free_below
                    ELSE least(free_below, greatest(0, slots - pool_slots - max(x.used) FILTER (WHERE x.key = '=pool')))
                END
          INTO rung_counts, free_below
          FROM (SELECT r.o, r.key, (coalesce((SELECT u.count FROM {schema}.limit_usage u
                                              WHERE u.namespace_id = ns AND u.limit_key = r.key), 0)
                                    + coalesce((SELECT sum(d.delta) FROM unnest(usage_keys, usage_deltas) d (key, delta)
                                                 WHERE d.key = r.key), 0))::int AS used
                  FROM unnest(ARRAY(SELECT '=rung:' || n FROM unnest(rung_names) WITH ORDINALITY r (n, o) ORDER BY o)
                              || '=pool'::text) WITH ORDINALITY r (key, o)) x;
      END IF;
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
          IF NOT c_persist[k] THEN
            WITH t AS (
              DELETE FROM {schema}.transient WHERE ctid = ANY (ARRAY(
                SELECT t.ctid FROM {schema}.transient t
                 WHERE t.class_id = t_class[i] AND t.task <> ALL (coalesce(paused_tasks, '{}'))
                 ORDER BY t.class_id, t.seq LIMIT want FOR UPDATE SKIP LOCKED))
              RETURNING *)
            SELECT count(*)::int, l_seq || array_agg(s.seq), l_id || array_agg(s.job_id), l_task || array_agg(s.task),
                   l_payload || array_agg(s.payload), l_tenant || array_agg(s.tenant), l_trace || array_agg(s.trace_id),
                   l_retries || array_agg(0), l_asked || array_agg(s.timeout_ms), l_submitted || array_agg(0::bigint),
                   l_more || array_agg(NULL::text), l_rung || array_agg(NULL::text), l_damaged || array_agg(NULL::text)
              INTO got, l_seq, l_id, l_task, l_payload, l_tenant, l_trace, l_retries, l_asked, l_submitted, l_more,
                   l_rung, l_damaged
              FROM (SELECT * FROM t ORDER BY t.seq) s;
          ELSE
            SELECT * INTO part FROM {schema}.claim_{version}(
              ns, now_at, asker, claim, t_class[i], c_fair[k], want, t_until[i],
              CASE WHEN look = 2 THEN -9223372036854775808 ELSE t_floor[i] END, has_blocked, skipped_max,
              r_name, r_prefix, r_limit, r_interval, r_burst, r_tenant, k_task, k_rules, k_default, paused_tasks,
              paused_tenants,
              coalesce(t_rung[i], 0), rung_names, rung_limits, t_pool[i], usage_keys, usage_deltas, rung_counts);
            got := part.got;
            more := more OR part.more;
            IF part.b_job IS NOT NULL THEN
              b_job := b_job || part.b_job;
              b_of := b_of || part.b_of;
              b_seq := b_seq || part.b_seq;
              b_id := b_id || part.b_id;
            END IF;
            usage_keys := part.usage_keys;
            usage_deltas := part.usage_deltas;
            rung_counts := part.rung_counts;
            IF part.gone IS NOT NULL THEN
              told := told || part.gone;
              kinds := kinds || 'cancelled'::text;
              counts := counts || cardinality(part.gone)::bigint;
              m_seq := m_seq || part.m_seq;
              m_batch := m_batch || part.m_batch;
              m_awaited := m_awaited || part.m_awaited;
            END IF;
            IF got > 0 THEN
              kept := kept + got;
              reached[i] := coalesce(part.line_key, reached[i]);
              l_seq := l_seq || part.l_seq;
              l_id := l_id || part.l_id;
              l_task := l_task || part.l_task;
              l_payload := l_payload || part.l_payload;
              l_tenant := l_tenant || part.l_tenant;
              l_trace := l_trace || part.l_trace;
              l_retries := l_retries || part.l_retries;
              l_asked := l_asked || part.l_asked;
              l_submitted := l_submitted || part.l_submitted;
              l_more := l_more || part.l_more;
              l_rung := l_rung || part.l_rung;
              l_damaged := l_damaged || part.l_damaged;
              IF c_fair[k] THEN
                UPDATE {schema}.class c SET clock = part.highest_key
                 WHERE c.class_id = t_class[i] AND c.clock < part.highest_key;
              END IF;
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
  IF usage_keys IS NOT NULL THEN
    PERFORM {schema}.count_usage_{version}(ns, usage_keys, usage_deltas);
  END IF;
  IF m_seq IS NOT NULL THEN
    -- The claims may hold the gate, for which a session with the flow lock waits: so this must not wait for that lock.
    IF NOT settles AND NOT pg_try_advisory_xact_lock({flow}, ns) THEN
      RAISE EXCEPTION USING ERRCODE = 'HW004', MESSAGE = 'a claim has ended jobs that others wait for';
    END IF;
    SELECT * INTO moved FROM {schema}.settle_ended_{version}(
      ns, now_at, binds, unsettled, m_seq, m_batch, m_awaited,
      array_fill('cancelled'::text, ARRAY[cardinality(m_seq)]), s_task, s_tenant, s_step);
    eligible := eligible || moved.eligible;
    told := told || moved.told;
    kinds := kinds || moved.kinds;
    counts := counts || moved.counts;
    remains := moved.remains;
  END IF;
  -- Workers are woken before totals are written: one that begins to wait holds the gate and writes its totals then.
  IF eligible IS NOT NULL THEN
    PERFORM {schema}.wake_{version}(ns, now_at, eligible, asker);
  END IF;
  IF remains THEN
    more := true;
    PERFORM {schema}.wake_any_{version}(ns, now_at);
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
    picture := {schema}.snapshot_{version}(ns, now_at, bound, t_class, reached, rewound, rung_names);
  END IF;
END $$;
