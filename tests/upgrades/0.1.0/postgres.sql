
CREATE SCHEMA headway;
CREATE FUNCTION headway.begin_7(ns integer, at bigint, alone boolean, OUT now_at bigint, OUT rules bigint, OUT parked boolean, OUT unsettled boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM set_config('idle_in_transaction_session_timeout', '30s', true);
  IF alone THEN
    PERFORM pg_advisory_xact_lock(-940774432, ns);
  ELSE
    PERFORM pg_advisory_xact_lock_shared(-940774432, ns);
  END IF;
  now_at := "headway".now_ms_7(at);
  SELECT n.rules, EXISTS (SELECT FROM "headway".park p WHERE p.namespace_id = ns),
         EXISTS (SELECT FROM "headway".unsettled u WHERE u.namespace_id = ns) INTO rules, parked, unsettled
    FROM "headway".namespace n WHERE n.namespace_id = ns;
END $$;
CREATE FUNCTION headway.blocked_for_7(queue text, r_name text[], r_limit integer[]) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
  rule int := array_position(r_name, split_part(queue, '=', 1));
BEGIN
  RETURN CASE WHEN queue LIKE '=paused:%' THEN 'paused' WHEN rule IS NOT NULL AND r_limit[rule] IS NULL THEN 'rate'
              ELSE 'limit' END;
END $$;
CREATE FUNCTION headway.cancel_members_7(ns integer, now_at bigint, batch bigint, beyond bigint, most integer, OUT size integer, OUT reached bigint, OUT missed bigint, OUT e_seq bigint[], OUT e_awaited bigint[], OUT e_id text[], OUT c_batch bigint[], OUT c_kind text[], OUT c_count integer[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  members bigint[];
  reasons text[];
  workers text[];
BEGIN
  SELECT array_agg(x.seq), array_agg('batch ' || x.batch_id), count(*), max(x.seq) INTO members, reasons, size, reached
    FROM (SELECT j.seq, b.batch_id FROM "headway".batch b JOIN "headway".job j ON j.batch_seq = b.seq
           WHERE b.seq = batch AND j.seq > beyond ORDER BY j.batch_seq, j.seq LIMIT most) x;
  IF size = 0 THEN
    RETURN;
  END IF;
  SELECT e.e_seq, e.e_awaited, e.e_id, e.c_batch, e.c_kind, e.c_count
    INTO e_seq, e_awaited, e_id, c_batch, c_kind, c_count
    FROM "headway".end_queued_7(ns, now_at, members, reasons) e;
  WITH asked AS (
    UPDATE "headway".lease l SET cancel_at = now_at WHERE l.seq = ANY (ARRAY(
      SELECT l.seq FROM "headway".lease l WHERE l.seq = ANY (members) AND l.cancel_at IS NULL FOR UPDATE SKIP LOCKED))
    RETURNING l.seq, l.worker_id)
  SELECT e_id || array_agg(j.job_id), array_agg(DISTINCT a.worker_id) INTO e_id, workers
    FROM asked a JOIN "headway".job j ON j.seq = a.seq;
  PERFORM "headway".notify_7(ns, 'k', w.worker_id) FROM unnest(workers) w (worker_id);
  SELECT min(m.seq) - 1 INTO missed FROM unnest(members) m (seq)
   WHERE m.seq <> ALL (coalesce(e_seq, '{}'))
     AND NOT EXISTS (SELECT FROM "headway".lease l WHERE l.seq = m.seq AND l.cancel_at IS NOT NULL)
     AND NOT EXISTS (SELECT FROM "headway".outcome o WHERE o.seq = m.seq);
END $$;
CREATE FUNCTION headway.claim_7(ns integer, now_at bigint, asker text, claim_id bytea, class integer, fair boolean, want integer, until_at bigint, from_key bigint, has_blocked boolean, skipped_max integer, r_name text[], r_prefix text[], r_limit integer[], r_interval bigint[], r_burst bigint[], r_tenant boolean[], k_task text[], k_rules text[], k_default text, paused_tasks text[], paused_tenants text[], rung integer, rung_names text[], rung_limits integer[], in_pool boolean, INOUT usage_keys text[], INOUT usage_deltas integer[], INOUT rung_counts integer[], OUT got integer, OUT line_key bigint, OUT highest_key bigint, OUT more boolean, OUT gone text[], OUT l_seq bigint[], OUT l_id text[], OUT l_task text[], OUT l_payload bytea[], OUT l_tenant text[], OUT l_trace text[], OUT l_retries integer[], OUT l_asked bigint[], OUT l_submitted bigint[], OUT l_more text[], OUT l_rung text[], OUT l_damaged text[], OUT m_seq bigint[], OUT m_batch bigint[], OUT m_awaited boolean[], OUT b_job bigint[], OUT b_of bigint[], OUT b_seq bigint[], OUT b_id text[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  now_us bigint := now_at * 1000;
  extra text[];            -- Counters beside those of limits, for every job of this class.
  room int := 2147483647;  -- How many more jobs may start on the ladder.
  skipped int := 0;
  stop boolean := false;
  asked int;
  per_queue int;
  -- The candidates of one round.
  size int;
  c_spot tid[];
  c_seq bigint[];
  c_key bigint[];
  c_eligible bigint[];
  c_expires bigint[];
  c_timeout bigint[];
  c_epoch int[];
  c_attempts int[];
  c_crashes int[];
  c_sharer text[];
  c_unique text[];
  c_queue text[];          -- The blocked queue that each is in; '' for the line.
  c_since bigint[];
  c_last boolean[];        -- The next job of its blocked queue was not read.
  c_id text[];
  c_task text[];
  c_payload bytea[];
  c_tenant text[];
  c_trace text[];
  c_retries int[];
  c_asked bigint[];
  c_submitted bigint[];
  c_limits text[];
  c_more text[];
  c_damaged text[];
  c_batch bigint[];        -- None if no candidate has a mark.
  c_awaited boolean[];
  marked boolean;
  cancelled bigint[];      -- The batches among them that are cancelled.
  careful boolean;
  again boolean;           -- There may be candidates that were not read.
  -- The counters that they need room in.
  d_task text[];
  d_rules text[];
  limited boolean;
  fits boolean;
  rated boolean;
  p_job int[];             -- Pairs of a candidate and a counter: the candidate,
  p_key text[];            -- the key of the counter,
  p_rule int[];            -- its rule, 0 for a pause,
  p_counter int[];         -- and its place among the counters.
  n_key text[];
  n_rule int[];
  n_used int[];
  n_reached bigint[];
  n_starts int[];
  -- What becomes of them.
  chosen int[];            -- None stands for all.
  single boolean;          -- Each job holds exactly one limit.
  held text[];             -- The limit that each job holds, or the text of an array of them.
  assigned text;
  assigned_each text[];
  expired int[];
  moved int[];
  moved_to text[];
  moved_seq bigint[];
  closed text[];           -- Blocked queues without room,
  closed_until bigint[];   -- and until when, if that is known.
  touched text[];          -- Blocked queues that jobs have left.
  pair int;
  first_pair int;
  full_pair int;           -- The pair whose counter has no room.
  full_until bigint;
  step int;
BEGIN
  got := 0;
  more := false;
  extra := CASE WHEN in_pool THEN ARRAY['=pool'] ELSE '{}' END;
  step := CASE WHEN rung = -2 THEN 1 ELSE rung END;
  IF rung <> 0 THEN
    room := "headway".rung_room_7(rung_counts, rung_limits, greatest(step, 1));
  END IF;
  LOOP
    asked := want - got;
    IF has_blocked THEN
      per_queue := asked / greatest(1, (SELECT count(*)::int FROM (
        SELECT FROM "headway".park p WHERE p.class_id = class AND p.open LIMIT asked) x)) + 2;
    END IF;
    SELECT count(*)::int, array_agg(x.ctid), array_agg(x.seq), array_agg(x.order_key), array_agg(x.eligible_at),
           array_agg(x.expires_at), array_agg(x.timeout_ms), array_agg(x.epoch), array_agg(x.attempts),
           array_agg(x.crashes), array_agg(x.tenant), array_agg(x.unique_key), array_agg(x.park),
           array_agg(x.parked_at), array_agg(x.last), array_agg(x.job_id), array_agg(x.task), array_agg(x.payload),
           array_agg(x.job_tenant), array_agg(x.trace_id), array_agg(x.max_retries), array_agg(x.asked_ms),
           array_agg(x.submitted_at), CASE WHEN bool_or(x.limits IS NOT NULL) THEN array_agg(x.limits) END,
           array_agg(x.more),
           bool_or(x.park <> '' OR x.expires_at <= now_at OR x.eligible_at > until_at) IS TRUE,
           bool_or(x.batch_seq IS NOT NULL OR x.awaited) IS TRUE
      INTO size, c_spot, c_seq, c_key, c_eligible, c_expires, c_timeout, c_epoch, c_attempts, c_crashes, c_sharer,
           c_unique, c_queue, c_since, c_last, c_id, c_task, c_payload, c_tenant, c_trace, c_retries, c_asked,
           c_submitted, c_limits, c_more, careful, marked
      FROM (SELECT r.*, j.job_id, j.task, j.payload, j.tenant AS job_tenant, j.trace_id, j.max_retries,
                   j.timeout_ms AS asked_ms, j.submitted_at, j.limits,
                   CASE WHEN r.epoch > 0 OR r.timeout_ms IS NOT NULL OR j.retry IS NOT NULL
                          OR r.eligible_at <> j.submitted_at
                        THEN json_build_array(r.epoch + 1, r.attempts + 1, r.crashes,
                                              coalesce(r.timeout_ms, j.timeout_ms), j.retry, r.eligible_at)::text
                    END AS more
              FROM (SELECT * FROM (
                      SELECT * FROM (
                        SELECT r.ctid, r.*, false AS last FROM "headway".ready r
                         WHERE r.class_id = class AND r.park = '' AND r.order_key >= from_key
                         ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT asked FOR UPDATE SKIP LOCKED) line
                      UNION ALL
                      SELECT q.* FROM (
                        SELECT p.park FROM "headway".park p WHERE has_blocked AND p.class_id = class AND p.open
                         ORDER BY p.head_key, p.head_seq LIMIT asked) p
                       CROSS JOIN LATERAL (
                         SELECT r.ctid, r.*, row_number() OVER (ORDER BY r.order_key, r.seq) = per_queue AS last
                           FROM "headway".ready r WHERE r.class_id = class AND r.park = p.park
                          ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT per_queue) q) m
                     ORDER BY m.order_key, m.seq LIMIT asked) r
              JOIN "headway".job j ON j.seq = r.seq ORDER BY r.order_key, r.seq) x;
    EXIT WHEN size = 0;
    again := size = asked;
    c_batch := NULL;
    c_awaited := NULL;
    cancelled := NULL;
    IF marked THEN
      SELECT array_agg(x.batch_seq), array_agg(x.awaited) INTO c_batch, c_awaited
        FROM (SELECT r.batch_seq, r.awaited FROM unnest(c_spot) WITH ORDINALITY s (spot, o)
               CROSS JOIN LATERAL (SELECT * FROM "headway".ready r WHERE r.ctid = s.spot OFFSET 0) r ORDER BY s.o) x;
      SELECT array_agg(b.seq) FILTER (WHERE b.cancel_at IS NOT NULL), b_seq || array_agg(b.seq),
             b_id || array_agg(b.batch_id) INTO cancelled, b_seq, b_id
        FROM "headway".batch b WHERE b.seq = ANY (c_batch);
      b_job := b_job || c_seq;
      b_of := b_of || c_batch;
      careful := careful OR cancelled IS NOT NULL;
    END IF;
    chosen := NULL;
    held := NULL;
    single := false;
    c_damaged := NULL;
    limited := false;
    IF k_task IS NOT NULL THEN
      SELECT array_agg(t.task), array_agg(coalesce(k_rules[t.place], k_default)),
             bool_or(coalesce(k_rules[t.place], k_default) <> '{}')
        INTO d_task, d_rules, limited
        FROM (SELECT t.task, array_position(k_task, t.task) AS place
                FROM (SELECT DISTINCT u.task FROM unnest(c_task) u (task)) t) t;
      IF array_position(d_rules, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', MESSAGE = (
          SELECT json_agg(d.task)::text FROM unnest(d_task, d_rules) d (task, rules) WHERE d.rules IS NULL);
      END IF;
      limited := limited OR c_limits IS NOT NULL OR c_task && paused_tasks OR c_tenant && paused_tenants;
    END IF;
    WHILE limited LOOP
      BEGIN
        -- As core's RuleIndex.keys: pauses, then limits on how many run, then rates.
        SELECT array_agg(k.job::int), array_agg(k.key), array_agg(k.rule), count(*) > 0
          INTO p_job, p_key, p_rule, limited
          FROM (SELECT t.job, 0 AS kind, '=paused:task:' || t.task AS key, 0 AS rule
                  FROM unnest(c_task) WITH ORDINALITY t (task, job) WHERE t.task = ANY (paused_tasks)
                UNION ALL
                SELECT t.job, 1, '=paused:tenant:' || t.tenant, 0
                  FROM unnest(c_tenant) WITH ORDINALITY t (tenant, job) WHERE t.tenant = ANY (paused_tenants)
                UNION ALL
                SELECT t.job, CASE WHEN r_interval[d.rule] IS NULL THEN 2 ELSE 3 END,
                       CASE WHEN r_tenant[d.rule] THEN r_prefix[d.rule] || '=' || coalesce(t.tenant, '')
                            ELSE r_name[d.rule] END, d.rule
                  FROM unnest(c_task, c_tenant) WITH ORDINALITY t (task, tenant, job)
                  JOIN (SELECT d.task, n.rule FROM unnest(d_task, d_rules) d (task, rules)
                         CROSS JOIN LATERAL unnest(d.rules::int[]) n (rule)) d ON d.task = t.task
                UNION ALL
                SELECT b.job, CASE WHEN r_interval[b.rule] IS NULL THEN 2 ELSE 3 END, b.key, b.rule
                  FROM (SELECT l.job, b.key, array_position(r_name, split_part(b.key, '=', 1)) AS rule
                          FROM unnest(c_limits) WITH ORDINALITY l (limits, job)
                         CROSS JOIN LATERAL json_array_elements_text(l.limits::json) b (key)
                         WHERE l.limits IS NOT NULL) b
                 WHERE b.rule IS NOT NULL
                 ORDER BY 1, 2, 3) k;
        EXIT;
      EXCEPTION WHEN data_exception THEN
        -- A job whose limits cannot be read never runs, so no limit counts it.
        c_damaged := ARRAY(SELECT CASE WHEN "headway".is_list_7(l.limits) THEN NULL ELSE l.limits END
                             FROM unnest(c_limits) WITH ORDINALITY l (limits, o) ORDER BY l.o);
        c_limits := ARRAY(SELECT CASE WHEN d.damaged IS NULL THEN d.limits END
                            FROM unnest(c_limits, c_damaged) WITH ORDINALITY d (limits, damaged, o) ORDER BY d.o);
      END;
    END LOOP;
    fits := true;
    IF limited THEN
      SELECT array_agg(x.key), array_agg(x.rule), array_agg(x.used), array_agg(x.reached_us), array_agg(x.starts),
             bool_and(CASE WHEN x.rule = 0 THEN false
                           ELSE coalesce(x.used + x.starts <= r_limit[x.rule], true)
                            AND coalesce((greatest(x.reached_us, now_us)
                                          + (x.starts - r_burst[x.rule]) * r_interval[x.rule]) / 1000 <= now_at, true)
                           END),
             bool_or(r_interval[x.rule] IS NOT NULL)
        INTO n_key, n_rule, n_used, n_reached, n_starts, fits, rated
        FROM (SELECT a.key, max(a.rule) AS rule, sum(a.starts)::int AS starts, sum(a.used)::int AS used,
                     max(a.reached_us) AS reached_us
                FROM (SELECT p.key COLLATE "C" AS key, p.rule, 1 AS starts, 0 AS used, NULL::bigint AS reached_us
                        FROM unnest(p_key, p_rule) p (key, rule)
                      UNION ALL
                      SELECT d.key, NULL, 0, d.delta, NULL FROM unnest(usage_keys, usage_deltas) d (key, delta)
                      UNION ALL
                      SELECT u.limit_key, NULL, 0, u.count, NULL FROM "headway".limit_usage u
                       WHERE u.namespace_id = ns AND u.limit_key = ANY (p_key)
                      UNION ALL
                      SELECT r.rate_key, NULL, 0, 0, r.reached_us FROM "headway".rate r
                       WHERE r.namespace_id = ns AND r.rate_key = ANY (p_key)) a
               GROUP BY a.key HAVING sum(a.starts) > 0 ORDER BY a.key) x;
    END IF;
    IF rung = -1 THEN
      step := "headway".longest_rung_7(rung_counts, rung_limits);
    END IF;
    assigned := CASE WHEN rung <> -2 THEN rung_names[step] END;
    IF NOT careful AND fits AND size <= room AND skipped < skipped_max
       AND (rung <> -1 OR size <= "headway".rung_room_7(rung_counts, rung_limits, step)) THEN
      assigned_each := CASE WHEN assigned IS NOT NULL THEN array_fill(assigned, ARRAY[size]) END;
      IF limited AND rated THEN
        n_reached := ARRAY(SELECT greatest(n.reached, now_us) + n.starts * r_interval[n.rule]
                             FROM unnest(n_reached, n_starts, n_rule) WITH ORDINALITY n (reached, starts, rule, o)
                            ORDER BY n.o);
      END IF;
      IF rung <> 0 THEN
        rung_counts[step] := rung_counts[step] + size;
        room := room - size;
      END IF;
    ELSE
      IF limited THEN
        p_counter := ARRAY(SELECT dense_rank() OVER (ORDER BY k.key COLLATE "C")
                             FROM unnest(p_key) WITH ORDINALITY k (key, o) ORDER BY k.o);
        n_starts := array_fill(0, ARRAY[cardinality(n_key)]);
      ELSE
        p_job := NULL;
      END IF;
      chosen := '{}';
      assigned_each := array_fill(NULL::text, ARRAY[size]);
      expired := '{}';
      moved := '{}';
      moved_to := '{}';
      closed := '{}';
      closed_until := '{}';
      touched := '{}';
      pair := 1;
      FOR o IN 1 .. size LOOP
        WHILE p_job[pair] < o LOOP
          pair := pair + 1;
        END LOOP;
        CONTINUE WHEN c_queue[o] = ANY (closed);
        IF c_eligible[o] > until_at THEN
          stop := true;
          EXIT;
        END IF;
        IF skipped = skipped_max THEN
          more := true;
          EXIT;
        END IF;
        IF c_expires[o] <= now_at OR c_batch[o] = ANY (cancelled) THEN
          expired := expired || o;
          touched := touched || c_queue[o];
          skipped := skipped + 1;
        ELSIF room <= 0 THEN
          stop := true;
          EXIT;
        ELSE
          first_pair := pair;
          full_pair := NULL;
          WHILE p_job[pair] = o AND full_pair IS NULL LOOP
            full_until := (greatest(n_reached[p_counter[pair]], now_us)
                           - (r_burst[p_rule[pair]] - 1) * r_interval[p_rule[pair]]) / 1000;
            IF p_rule[pair] = 0 OR n_used[p_counter[pair]] >= r_limit[p_rule[pair]] THEN
              full_pair := pair;
              full_until := NULL;
            ELSIF full_until > now_at THEN
              full_pair := pair;
            END IF;
            pair := pair + 1;
          END LOOP;
          IF full_pair IS NOT NULL THEN
            closed := closed || p_key[full_pair];
            closed_until := closed_until || full_until;
            skipped := skipped + 1;
            IF c_queue[o] <> p_key[full_pair] THEN
              moved := moved || o;
              moved_to := moved_to || p_key[full_pair];
              touched := touched || c_queue[o];
            END IF;
          ELSE
            FOR i IN first_pair .. pair - 1 LOOP
              n_used[p_counter[i]] := n_used[p_counter[i]] + 1;
              n_starts[p_counter[i]] := n_starts[p_counter[i]] + 1;
              IF r_interval[p_rule[i]] IS NOT NULL THEN
                n_reached[p_counter[i]] := greatest(n_reached[p_counter[i]], now_us) + r_interval[p_rule[i]];
              END IF;
            END LOOP;
            IF rung <> 0 THEN
              IF rung = -1 THEN
                step := "headway".longest_rung_7(rung_counts, rung_limits);
                assigned := rung_names[step];
              END IF;
              assigned_each[o] := assigned;
              rung_counts[step] := rung_counts[step] + 1;
              room := room - 1;
            END IF;
            chosen := chosen || o;
            touched := touched || c_queue[o];
          END IF;
        END IF;
        IF c_last[o] AND c_queue[o] <> ALL (closed) THEN
          again := true;
          EXIT;
        END IF;
      END LOOP;
      IF expired <> '{}' THEN
        WITH e AS (
          DELETE FROM "headway".ready r WHERE r.ctid = ANY (ARRAY(SELECT c_spot[i] FROM unnest(expired) i))
          RETURNING *),
        o AS (
          INSERT INTO "headway".outcome (seq, finished_at, eligible_at, timeout_ms, epoch, attempts, crashes, state,
                                        token, error, reason)
          SELECT e.seq, now_at, e.eligible_at, e.timeout_ms, e.epoch, e.attempts, e.crashes, 'cancelled', e.token,
                 e.error, CASE WHEN e.batch_seq = ANY (cancelled)
                               THEN 'batch ' || (SELECT b.batch_id FROM "headway".batch b WHERE b.seq = e.batch_seq)
                               ELSE 'expired' END FROM e),
        u AS (
          DELETE FROM "headway".unique_key u
           WHERE u.namespace_id = ns AND u.unique_key = ANY (ARRAY(SELECT e.unique_key FROM e)))
        SELECT gone || array_agg(c_id[i]),
               m_seq || array_agg(c_seq[i]) FILTER (WHERE c_batch[i] IS NOT NULL OR c_awaited[i]),
               m_batch || array_agg(c_batch[i]) FILTER (WHERE c_batch[i] IS NOT NULL OR c_awaited[i]),
               m_awaited || array_agg(c_awaited[i]) FILTER (WHERE c_batch[i] IS NOT NULL OR c_awaited[i])
          INTO gone, m_seq, m_batch, m_awaited FROM unnest(expired) i;
      END IF;
      IF moved <> '{}' THEN
        SELECT array_agg(m.seq), array_agg(m.key) INTO moved_seq, moved_to
          FROM (SELECT c_seq[m.i] AS seq, m.key FROM unnest(moved, moved_to) m (i, key) ORDER BY 1) m;
        UPDATE "headway".ready r SET park = moved_to[width_bucket(r.seq, moved_seq)],
               parked_at = coalesce(r.parked_at, now_at)
         WHERE r.ctid = ANY (ARRAY(SELECT c_spot[i] FROM unnest(moved) i));
        UPDATE "headway".job j SET park = moved_to[width_bucket(j.seq, moved_seq)] WHERE j.seq = ANY (moved_seq);
        has_blocked := true;
      END IF;
    END IF;
    IF limited THEN
      usage_keys := usage_keys || n_key;
      usage_deltas := usage_deltas || n_starts;
      IF rated THEN
        INSERT INTO "headway".rate (namespace_id, rate_key, reached_us)
        SELECT ns, n.key, n.reached FROM unnest(n_key, n_rule, n_starts, n_reached) n (key, rule, starts, reached)
         WHERE r_interval[n.rule] IS NOT NULL AND n.starts > 0
            ON CONFLICT (namespace_id, rate_key) DO UPDATE SET reached_us = excluded.reached_us;
      END IF;
      -- Only limits on how many run are held: a rate counts starts.
      SELECT array_agg(p.key), coalesce(bool_and(p.job = p.place) AND count(*) = size, false) INTO held, single
        FROM (SELECT p.job, p.key, row_number() OVER () AS place FROM unnest(p_job, p_key, p_rule) p (job, key, rule)
               WHERE r_limit[p.rule] IS NOT NULL) p;
      IF NOT single THEN
        held := ARRAY(SELECT (array_agg(k.key) FILTER (WHERE k.key IS NOT NULL))::text
                        FROM (SELECT p.job, p.key FROM unnest(p_job, p_key, p_rule) p (job, key, rule)
                               WHERE r_limit[p.rule] IS NOT NULL
                              UNION ALL SELECT i, NULL FROM generate_series(1, size) i) k
                       GROUP BY k.job ORDER BY k.job);
      END IF;
    END IF;
    IF chosen IS NULL OR chosen <> '{}' THEN
      INSERT INTO "headway".lease (seq, order_key, started_at, eligible_at, timeout_ms, parked_ms, class_id, epoch,
                                  attempts, crashes, token, worker_id, tenant, unique_key, limit_keys, assigned,
                                  parked_for, batch_seq, awaited)
      SELECT x.seq, x.order_key, now_at, x.eligible_at, x.timeout_ms, now_at - x.since, class, x.epoch + 1,
             x.attempts + 1, x.crashes, claim_id, asker, CASE WHEN fair THEN coalesce(x.tenant, '') END, x.unique_key,
             CASE WHEN single AND rung = 0 AND extra = '{}' THEN ARRAY[x.held]
                  WHEN limited OR rung <> 0 OR in_pool
                  THEN nullif(CASE WHEN single THEN ARRAY[x.held] ELSE coalesce(x.held::text[], '{}') END || extra
                              || CASE WHEN rung = -2 THEN ARRAY['=rung:' || rung_names[1]]
                                      WHEN x.assigned IS NOT NULL THEN ARRAY['=rung:' || x.assigned]
                                      ELSE '{}' END, '{}') END,
             x.assigned,
             CASE WHEN x.queue <> '' THEN "headway".blocked_for_7(x.queue, r_name, r_limit) END,
             x.batch, x.awaited
        FROM unnest(c_seq, c_key, c_eligible, c_timeout, c_epoch, c_attempts, c_crashes, c_sharer, c_unique, c_queue,
                    c_since, held, assigned_each, c_batch, c_awaited)
             WITH ORDINALITY x (seq, order_key, eligible_at, timeout_ms, epoch, attempts, crashes, tenant, unique_key,
                                queue, since, held, assigned, batch, awaited, o)
       WHERE chosen IS NULL OR x.o = ANY (chosen);
    END IF;
    IF chosen IS NULL THEN
      DELETE FROM "headway".ready WHERE ctid = ANY (c_spot);
      got := got + size;
      line_key := greatest(line_key, c_key[size]);
      highest_key := greatest(highest_key, c_key[size]);
      l_seq := l_seq || c_seq;
      l_id := l_id || c_id;
      l_task := l_task || c_task;
      l_payload := l_payload || c_payload;
      l_tenant := l_tenant || c_tenant;
      l_trace := l_trace || c_trace;
      l_retries := l_retries || c_retries;
      l_asked := l_asked || c_asked;
      l_submitted := l_submitted || c_submitted;
      l_more := l_more || c_more;
      l_rung := l_rung || coalesce(assigned_each, array_fill(NULL::text, ARRAY[size]));
      l_damaged := l_damaged || coalesce(c_damaged, array_fill(NULL::text, ARRAY[size]));
    ELSE
      IF chosen <> '{}' THEN
        DELETE FROM "headway".ready WHERE ctid = ANY (ARRAY(SELECT c_spot[i] FROM unnest(chosen) i));
        got := got + cardinality(chosen);
        SELECT greatest(line_key, max(c_key[i]) FILTER (WHERE c_queue[i] = '')), greatest(highest_key, max(c_key[i])),
               l_seq || array_agg(c_seq[i]), l_id || array_agg(c_id[i]), l_task || array_agg(c_task[i]),
               l_payload || array_agg(c_payload[i]), l_tenant || array_agg(c_tenant[i]),
               l_trace || array_agg(c_trace[i]), l_retries || array_agg(c_retries[i]),
               l_asked || array_agg(c_asked[i]), l_submitted || array_agg(c_submitted[i]),
               l_more || array_agg(c_more[i]), l_rung || array_agg(assigned_each[i]),
               l_damaged || array_agg(c_damaged[i])
          INTO line_key, highest_key, l_seq, l_id, l_task, l_payload, l_tenant, l_trace, l_retries, l_asked,
               l_submitted, l_more, l_rung, l_damaged
          FROM unnest(chosen) i;
      END IF;
      touched := array_remove(touched, '');
      IF touched <> '{}' OR closed <> '{}' THEN
        WITH a AS (
          SELECT x.key, max(x.o) > 0 AS closed, (array_agg(x.until_at ORDER BY x.o DESC))[1] AS open_at
            FROM (SELECT t.key, 0::bigint AS o, NULL::bigint AS until_at FROM unnest(touched) t (key)
                  UNION ALL
                  SELECT t.key, t.o, t.until_at
                    FROM unnest(closed, closed_until) WITH ORDINALITY t (key, until_at, o)) x GROUP BY x.key),
        h AS (
          SELECT a.*, r.order_key, r.seq FROM a
            LEFT JOIN LATERAL (SELECT r.order_key, r.seq FROM "headway".ready r
                                WHERE r.class_id = class AND r.park = a.key
                                ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) r ON true),
        e AS (
          DELETE FROM "headway".park p
           WHERE p.namespace_id = ns AND p.class_id = class
             AND p.park = ANY (ARRAY(SELECT h.key FROM h WHERE h.seq IS NULL)))
        INSERT INTO "headway".park AS p (namespace_id, park, class_id, open, open_at, head_key, head_seq)
        SELECT ns, h.key, class, NOT h.closed, h.open_at, h.order_key, h.seq FROM h WHERE h.seq IS NOT NULL
            ON CONFLICT (namespace_id, park, class_id) DO UPDATE
           SET head_key = excluded.head_key, head_seq = excluded.head_seq,
               open = p.open AND excluded.open,
               open_at = CASE WHEN excluded.open THEN p.open_at ELSE excluded.open_at END;
      END IF;
    END IF;
    EXIT WHEN stop OR more OR got >= want OR NOT again;
  END LOOP;
  IF got > 0 AND rung <> 0 OR in_pool THEN
    usage_keys := usage_keys || ARRAY(SELECT '=rung:' || coalesce(r.name, rung_names[1]) FROM unnest(l_rung) r (name)
                                       WHERE rung <> 0) || CASE WHEN in_pool THEN ARRAY['=pool'] ELSE '{}' END;
    usage_deltas := usage_deltas || array_fill(1, ARRAY[CASE WHEN rung <> 0 THEN got ELSE 0 END])
                    || CASE WHEN in_pool THEN ARRAY[got] ELSE '{}' END;
  END IF;
END $$;
CREATE FUNCTION headway.count_batches_7(now_at bigint, INOUT c_batch bigint[], INOUT c_kind text[], INOUT c_count integer[], OUT touched bigint[], OUT reopened bigint[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  n_batch bigint[] := c_batch;
  n_kind text[] := c_kind;
  n_count int[] := c_count;
  change record;
  batch record;
  reopens boolean;
  fails boolean;
  finishes boolean;
BEGIN
  c_batch := NULL;
  c_kind := NULL;
  c_count := NULL;
  FOR change IN
    SELECT c.batch,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'live'), 0)::int AS live,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'children'), 0)::int AS children,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'held'), 0)::int AS held,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'completed'), 0)::int AS completed,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'failed'), 0)::int AS failed,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'cancelled'), 0)::int AS cancelled,
           coalesce(sum(c.count) FILTER (WHERE c.kind = 'bad'), 0) > 0 AS bad
      FROM unnest(n_batch, n_kind, n_count) c (batch, kind, count) GROUP BY c.batch ORDER BY c.batch
  LOOP
    SELECT * INTO batch FROM "headway".batch b WHERE b.seq = change.batch FOR NO KEY UPDATE;
    CONTINUE WHEN NOT FOUND;
    reopens := batch.finished_at IS NOT NULL AND batch.live + change.live > 0;
    fails := change.bad AND (reopens OR batch.cancel_at IS NULL AND NOT batch.failing);
    finishes := batch.finished_at IS NULL AND NOT batch.open AND batch.live + change.live = 0;
    UPDATE "headway".batch b
       SET live = b.live + change.live, children = b.children + change.children, held = b.held + change.held,
           completed = b.completed + change.completed, failed = b.failed + change.failed,
           cancelled = b.cancelled + change.cancelled, round = b.round + reopens::int,
           failing = fails OR b.failing AND NOT reopens, cancel_at = CASE WHEN NOT reopens THEN b.cancel_at END,
           finished_at = CASE WHEN reopens THEN NULL WHEN finishes THEN now_at ELSE b.finished_at END
     WHERE b.seq = change.batch;
    IF reopens THEN
      reopened := reopened || change.batch;
    END IF;
    IF (reopens OR finishes) AND batch.parent_seq IS NOT NULL THEN
      IF finishes THEN
        batch.failed := batch.failed + change.failed + batch.cancelled + change.cancelled;
      ELSE
        batch.failed := batch.failed + batch.cancelled;
      END IF;
      c_batch := c_batch || array_fill(batch.parent_seq, ARRAY[4]);
      c_kind := c_kind || ARRAY['live', 'children', CASE WHEN batch.failed = 0 THEN 'completed' ELSE 'failed' END,
                                'bad'];
      c_count := c_count || CASE WHEN reopens THEN ARRAY[1, 1, -1, 0]
                                 ELSE ARRAY[-1, -1, 1, (batch.failed <> 0)::int] END;
    END IF;
    IF (reopens OR fails OR finishes) AND EXISTS (SELECT FROM "headway".edge e WHERE e.source_seq = change.batch) THEN
      touched := touched || change.batch;
    END IF;
  END LOOP;
END $$;
CREATE FUNCTION headway.count_up_7(ns integer, at bigint, kinds text[], counts bigint[], own boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
  INSERT INTO "headway".tally AS t (namespace_id, minute, shard, what, count)
  SELECT ns, at / 60000,
         CASE WHEN own THEN 1000 + pg_backend_pid() ELSE pg_backend_pid() % 32 + 32 * (at / 10000 % 6) END,
         k.what, sum(k.count)
    FROM unnest(kinds, counts) k (what, count)
   WHERE k.count > 0 GROUP BY k.what ORDER BY k.what
      ON CONFLICT (namespace_id, minute, what, shard) DO UPDATE SET count = t.count + excluded.count;
END $$;
CREATE FUNCTION headway.count_usage_7(ns integer, keys text[], deltas integer[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  changed text[];
  sums int[];
  known int;
BEGIN
  SELECT array_agg(x.key), array_agg(x.delta) INTO changed, sums
    FROM (SELECT d.key COLLATE "C" AS key, sum(d.delta)::int AS delta FROM unnest(keys, deltas) d (key, delta)
           GROUP BY 1 HAVING sum(d.delta) <> 0 ORDER BY 1) x;
  IF changed IS NULL THEN
    RETURN;
  END IF;
  UPDATE "headway".limit_usage u SET count = u.count + sums[width_bucket(u.limit_key COLLATE "C", changed)]
   WHERE u.namespace_id = ns AND u.limit_key = ANY (changed);
  GET DIAGNOSTICS known = ROW_COUNT;
  IF known < cardinality(changed) THEN
    INSERT INTO "headway".limit_usage (namespace_id, limit_key, count)
    SELECT ns, d.key, d.delta FROM unnest(changed, sums) d (key, delta)
     WHERE NOT EXISTS (SELECT FROM "headway".limit_usage u WHERE u.namespace_id = ns AND u.limit_key = d.key);
  END IF;
END $$;
CREATE FUNCTION headway.end_queued_7(ns integer, now_at bigint, seqs bigint[], reasons text[], OUT e_seq bigint[], OUT e_awaited bigint[], OUT e_id text[], OUT c_batch bigint[], OUT c_kind text[], OUT c_count integer[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  batches bigint[];
  held boolean[];
  uniques text[];
  left_class int[];
  left_park text[];
BEGIN
  WITH d AS (
    DELETE FROM "headway".delayed d WHERE d.ctid = ANY (ARRAY(
      SELECT d.ctid FROM unnest(seqs) s (seq)
       CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = s.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT d.ctid FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = j.due_at
                              AND d.seq = j.seq FOR UPDATE SKIP LOCKED) d))
    RETURNING d.seq, d.due_at, NULL::bigint AS eligible_at, d.timeout_ms, d.epoch, d.attempts, d.crashes, d.token,
              d.error, 0 AS class_id, '' AS park),
  r AS (
    DELETE FROM "headway".ready r WHERE r.ctid = ANY (ARRAY(
      SELECT r.ctid FROM unnest(seqs) s (seq)
       CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = s.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT r.ctid FROM "headway".ready r WHERE r.class_id = j.class_id AND r.park = j.park
                              AND r.order_key = j.order_key AND r.seq = j.seq FOR UPDATE SKIP LOCKED) r))
    RETURNING r.seq, NULL::bigint, r.eligible_at, r.timeout_ms, r.epoch, r.attempts, r.crashes, r.token, r.error,
              r.class_id, r.park),
  e AS (SELECT * FROM d UNION ALL SELECT * FROM r),
  o AS (
    INSERT INTO "headway".outcome (seq, finished_at, eligible_at, timeout_ms, epoch, attempts, crashes, state, token,
                                  error, reason)
    SELECT e.seq, now_at, e.eligible_at, e.timeout_ms, e.epoch, e.attempts, e.crashes, 'cancelled', e.token, e.error,
           reasons[array_position(seqs, e.seq)] FROM e)
  SELECT array_agg(e.seq), array_agg(e.seq) FILTER (WHERE j.awaited), array_agg(j.job_id),
         array_agg(j.batch_seq) FILTER (WHERE j.batch_seq IS NOT NULL),
         array_agg(e.due_at IS NOT DISTINCT FROM 253402300800000) FILTER (WHERE j.batch_seq IS NOT NULL),
         array_agg(j.unique_key) FILTER (WHERE j.unique_key IS NOT NULL),
         array_agg(e.class_id) FILTER (WHERE e.park <> ''), array_agg(e.park) FILTER (WHERE e.park <> '')
    INTO e_seq, e_awaited, e_id, batches, held, uniques, left_class, left_park
    FROM (SELECT e.* FROM e ORDER BY array_position(seqs, e.seq)) e
   CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = e.seq OFFSET 0) j;
  IF batches IS NOT NULL THEN
    SELECT array_agg(x.batch), array_agg(x.kind), array_agg(x.count) INTO c_batch, c_kind, c_count
      FROM (SELECT x.batch, k.kind, sum(k.count)::int AS count FROM unnest(batches, held) x (batch, held)
             CROSS JOIN LATERAL (VALUES ('live', -1), ('held', -x.held::int), ('cancelled', 1), ('bad', 1))
                   k (kind, count)
             GROUP BY x.batch, k.kind) x;
  END IF;
  IF uniques IS NOT NULL THEN
    DELETE FROM "headway".unique_key u WHERE u.namespace_id = ns AND u.unique_key = ANY (uniques);
  END IF;
  IF left_park IS NOT NULL THEN
    WITH h AS (
      SELECT p.class_id, p.park, r.order_key, r.seq
        FROM (SELECT DISTINCT p.class_id, p.park FROM unnest(left_class, left_park) p (class_id, park)) p
        LEFT JOIN LATERAL (SELECT r.order_key, r.seq FROM "headway".ready r
                            WHERE r.class_id = p.class_id AND r.park = p.park
                            ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) r ON true),
    moved AS (UPDATE "headway".park p SET head_key = h.order_key, head_seq = h.seq FROM h
               WHERE p.namespace_id = ns AND p.park = h.park AND p.class_id = h.class_id AND h.seq IS NOT NULL)
    DELETE FROM "headway".park p USING h
     WHERE p.namespace_id = ns AND p.park = h.park AND p.class_id = h.class_id AND h.seq IS NULL;
  END IF;
END $$;
CREATE FUNCTION headway.exchange_7(ns integer, at bigint, rules bigint, binds boolean, is_due_done boolean, settles boolean, asker text, known_spot tid, claim bytea, f_ids text[], f_seqs bigint[], f_tokens bytea[], f_states text[], f_results bytea[], f_attempts integer[], f_crashes integer[], f_timeouts bigint[], f_problems text[], f_errors text[], f_reasons text[], p_ids text[], p_seqs bigint[], p_tokens bytea[], p_fractions double precision[], p_notes text[], claims boolean, free integer, free_below integer, leave_free boolean, classes integer, t_class integer[], t_most integer[], t_below boolean[], t_until bigint[], t_label text[], t_floor bigint[], t_rewound integer[], t_rung integer[], t_pool boolean[], r_name text[], r_prefix text[], r_limit integer[], r_interval bigint[], r_burst bigint[], r_tenant boolean[], k_task text[], k_rules text[], k_default text, paused_tasks text[], paused_tenants text[], rung_names text[], rung_limits integer[], rung_percents double precision[], pool_slots integer, pool_lanes text[], s_task text[], s_tenant text[], s_step bigint[], look integer, waits boolean, lanes text[], pictured boolean, bound integer, skipped_max integer, OUT status text, OUT now_at bigint, OUT state text, OUT again boolean, OUT more boolean, OUT refused integer[], OUT answers text[], OUT l_take integer[], OUT l_seq bigint[], OUT l_id text[], OUT l_task text[], OUT l_payload bytea[], OUT l_tenant text[], OUT l_trace text[], OUT l_retries integer[], OUT l_asked bigint[], OUT l_submitted bigint[], OUT l_more text[], OUT l_rung text[], OUT l_damaged text[], OUT b_job bigint[], OUT b_of bigint[], OUT b_seq bigint[], OUT b_id text[], OUT reached bigint[], OUT rewound integer[], OUT looked_us bigint, OUT spot tid, OUT picture text) RETURNS record
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
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
    PERFORM pg_advisory_xact_lock(-940774432, ns);
  ELSE
    PERFORM pg_advisory_xact_lock_shared(-940774432, ns);
  END IF;
  now_at := "headway".now_ms_7(at);
  more := false;
  again := false;
  looked_us := 0;
  SELECT CASE WHEN n.rules IS DISTINCT FROM exchange_7.rules THEN 'stale'
              WHEN NOT is_due_done AND EXISTS (SELECT FROM "headway".delayed d
                                                WHERE d.namespace_id = ns AND d.due_at <= exchange_7.now_at)
              THEN 'due' ELSE 'ok' END,
         EXISTS (SELECT FROM "headway".park p WHERE p.namespace_id = ns),
         EXISTS (SELECT FROM "headway".watcher w WHERE w.namespace_id = ns),
         EXISTS (SELECT FROM "headway".unsettled u WHERE u.namespace_id = ns)
    INTO status, has_blocked, watched, unsettled FROM "headway".namespace n WHERE n.namespace_id = ns;
  IF status = 'ok' AND has_blocked AND NOT binds THEN
    status := 'alone';
  END IF;
  IF status <> 'ok' THEN
    RETURN;
  END IF;
  IF settles THEN
    PERFORM pg_advisory_xact_lock(797684821, ns);
  END IF;
  state := 'dead';
  SELECT w.state, w.lease_ends_at, w.slots, w.running, w.claim_id, w.waiting, w.wait_lanes, w.ctid INTO me
    FROM "headway".worker w WHERE w.ctid = known_spot AND w.worker_id = asker AND w.namespace_id = ns FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    SELECT w.state, w.lease_ends_at, w.slots, w.running, w.claim_id, w.waiting, w.wait_lanes, w.ctid INTO me
      FROM "headway".worker w WHERE w.worker_id = asker AND w.namespace_id = ns FOR NO KEY UPDATE;
  END IF;
  IF FOUND THEN
    state := me.state;
    spot := me.ctid;
    IF state = 'active' AND me.lease_ends_at <= now_at THEN  -- It is alive, so the clock has stepped: let it renew.
      PERFORM "headway".notify_7(ns, 'k', asker);
    END IF;
  END IF;
  IF f_seqs IS NOT NULL THEN
    SELECT * INTO done FROM "headway".finish_7(ns, now_at, asker, binds, f_seqs, f_tokens, f_states, f_results,
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
    usage_deltas := ARRAY(SELECT -n FROM unnest(done.freed_counts) n);
    IF has_blocked AND usage_keys IS NOT NULL THEN
      WITH p AS (UPDATE "headway".park p SET open = true
                  WHERE p.namespace_id = ns AND p.park = ANY (done.freed_keys) AND NOT p.open AND p.open_at IS NULL
                 RETURNING p.class_id)
      SELECT array_agg(p.class_id) INTO eligible FROM p;
    END IF;
    IF ended > 0 AND (rung_names IS NOT NULL OR pool_slots IS NOT NULL) THEN
      eligible := eligible || ARRAY(
        SELECT c.class_id FROM "headway".class c
         WHERE c.namespace_id = ns AND c.persist
           AND (rung_names IS NOT NULL AND c.rung <> '' OR c.lane <> ALL (pool_lanes))
           AND EXISTS (SELECT FROM "headway".ready r WHERE r.class_id = c.class_id AND r.park = '')
         ORDER BY c.lane, c.needs, c.rung);
    END IF;
  END IF;
  IF m_seq IS NOT NULL OR unsettled THEN
    -- An exchange that has ended a job with a mark waits for its turn to settle. One that only finds something left
    -- takes
    -- the turn if it is free.
    IF m_seq IS NOT NULL THEN
      PERFORM pg_advisory_xact_lock(797684821, ns);
      settles := true;
    ELSE
      settles := settles OR pg_try_advisory_xact_lock(797684821, ns);
    END IF;
    remains := true;
    IF settles THEN
      SELECT * INTO moved FROM "headway".settle_ended_7(
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
    UPDATE "headway".lease l SET progress = p.fraction, note = p.note
      FROM unnest(p_seqs, p_tokens, p_fractions, p_notes) p (seq, token, fraction, note)
     WHERE l.seq = p.seq AND l.token = p.token;
  END IF;
  IF has_blocked THEN
    UPDATE "headway".park p SET open = true, open_at = NULL WHERE p.namespace_id = ns AND p.open_at <= now_at;
  END IF;
  IF claims THEN
    SELECT array_agg(c.class_id), array_agg(c.rewound), array_agg(c.fair), array_agg(c.persist)
      INTO c_ids, c_rewound, c_fair, c_persist
      FROM "headway".class c WHERE c.namespace_id = ns;
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
        SELECT coalesce(sum(w.slots), 0) INTO slots FROM "headway".worker w
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
          FROM (SELECT r.o, r.key, (coalesce((SELECT u.count FROM "headway".limit_usage u
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
              DELETE FROM "headway".transient WHERE ctid = ANY (ARRAY(
                SELECT t.ctid FROM "headway".transient t
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
            SELECT * INTO part FROM "headway".claim_7(
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
                UPDATE "headway".class c SET clock = part.highest_key
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
        PERFORM pg_advisory_xact_lock(-609228881, ns);
        tries := 2;
      END LOOP;
      IF claimed > 0 THEN
        kinds := kinds || 'claimed'::text;
        counts := counts || claimed::bigint;
        UPDATE "headway".worker w SET claim_id = claim, waiting = NULL, running = w.running + kept - ended_own
         WHERE w.ctid = me.ctid RETURNING w.ctid INTO spot;
      ELSIF waits AND NOT more THEN
        IF me.waiting IS NULL OR me.wait_lanes IS DISTINCT FROM lanes THEN
          UPDATE "headway".worker w SET waiting = nextval('"headway".turn'), wait_lanes = lanes,
              running = w.running - ended_own WHERE w.ctid = me.ctid RETURNING w.ctid INTO spot;
        ELSIF ended_own > 0 THEN
          UPDATE "headway".worker w SET running = w.running - ended_own WHERE w.ctid = me.ctid
          RETURNING w.ctid INTO spot;
        END IF;
      ELSIF me.waiting IS NOT NULL OR ended_own > 0 THEN
        UPDATE "headway".worker w SET waiting = NULL, running = w.running - ended_own WHERE w.ctid = me.ctid
        RETURNING w.ctid INTO spot;
      END IF;
      ended_own := 0;
    END IF;
  END IF;
  IF ended_own > 0 THEN
    UPDATE "headway".worker w SET running = w.running - ended_own WHERE w.ctid = me.ctid RETURNING w.ctid INTO spot;
  END IF;
  IF usage_keys IS NOT NULL THEN
    PERFORM "headway".count_usage_7(ns, usage_keys, usage_deltas);
  END IF;
  IF m_seq IS NOT NULL THEN
    -- The claims may hold the gate, for which a session with the flow lock waits: so this must not wait for that lock.
    IF NOT settles AND NOT pg_try_advisory_xact_lock(797684821, ns) THEN
      RAISE EXCEPTION USING ERRCODE = 'HW004', MESSAGE = 'a claim has ended jobs that others wait for';
    END IF;
    SELECT * INTO moved FROM "headway".settle_ended_7(
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
    PERFORM "headway".wake_7(ns, now_at, eligible, asker);
  END IF;
  IF remains THEN
    more := true;
    PERFORM "headway".wake_any_7(ns, now_at);
  END IF;
  IF cardinality(kinds) > 0 THEN
    PERFORM "headway".count_up_7(ns, now_at, kinds, counts, false);
  END IF;
  IF watched THEN
    IF f_ids IS NULL AND f_seqs IS NOT NULL THEN
      f_ids := ARRAY(SELECT j.job_id FROM "headway".job j WHERE j.seq = ANY (f_seqs));
    END IF;
    PERFORM "headway".notify_jobs_7(ns, f_ids || told || l_id);
  END IF;
  IF pictured OR outdated THEN
    picture := "headway".snapshot_7(ns, now_at, bound, t_class, reached, rewound, rung_names);
  END IF;
END $$;
CREATE FUNCTION headway.finish_7(ns integer, now_at bigint, asker text, binds boolean, f_seqs bigint[], f_tokens bytea[], f_states text[], f_results bytea[], f_attempts integer[], f_crashes integer[], f_timeouts bigint[], f_problems text[], f_errors text[], f_reasons text[], OUT ended integer, OUT ended_own integer, OUT refused integer[], OUT answers text[], OUT kinds text[], OUT counts bigint[], OUT freed_keys text[], OUT freed_counts integer[], OUT m_seq bigint[], OUT m_batch bigint[], OUT m_awaited boolean[], OUT m_state text[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  completed int;
  accepted int[];
  uniques text[];
  others text[];
BEGIN
  WITH l AS (
    DELETE FROM "headway".lease l
     WHERE l.seq = ANY (f_seqs) AND l.token = coalesce(f_tokens[width_bucket(l.seq, f_seqs)], f_tokens[1])
    RETURNING l.*, width_bucket(l.seq, f_seqs) AS o),
  d AS NOT MATERIALIZED (
    SELECT l.seq, l.o, l.token, coalesce(f_states[l.o], f_states[1]) AS state, f_results[l.o] AS result,
           coalesce(f_attempts[l.o], f_attempts[1]) AS attempts, coalesce(f_crashes[l.o], f_crashes[1]) AS crashes,
           coalesce(f_timeouts[l.o], f_timeouts[1]) AS timeout_ms, f_problems[l.o] AS problem, f_errors[l.o] AS error,
           f_reasons[l.o] AS reason, l.worker_id, l.started_at, l.eligible_at, l.epoch, l.attempts AS number,
           l.unique_key, l.cancel_at, l.progress, l.note, l.parked_for, l.parked_ms, l.batch_seq, l.awaited FROM l),
  e AS (
    INSERT INTO "headway".outcome (seq, finished_at, started_at, eligible_at, timeout_ms, cancel_at, parked_ms,
                                  progress, epoch, attempts, crashes, state, worker_id, token, note, reason, error,
                                  result_error, result, parked_for)
    SELECT d.seq, now_at, d.started_at, d.eligible_at, d.timeout_ms, d.cancel_at, d.parked_ms, d.progress, d.epoch,
           d.attempts, d.crashes, d.state, d.worker_id, d.token, d.note, d.reason, d.error, d.problem, d.result,
           d.parked_for FROM d),
  a AS (
    INSERT INTO "headway".attempt (seq, started_at, ended_at, epoch, number, worker_id, reason, error)
    SELECT d.seq, d.started_at, now_at, d.epoch, d.number, d.worker_id, coalesce(d.reason, d.state), d.error FROM d
     WHERE d.error IS NOT NULL
        ON CONFLICT (seq, epoch) DO NOTHING),
  k AS (SELECT u.key, count(*)::int AS count FROM l CROSS JOIN LATERAL unnest(l.limit_keys) u (key)
         WHERE binds GROUP BY u.key)
  SELECT count(*), count(*) FILTER (WHERE d.worker_id = asker), count(*) FILTER (WHERE d.state = 'completed'),
         array_agg(d.o), array_agg(d.unique_key) FILTER (WHERE d.unique_key IS NOT NULL),
         array_agg(d.worker_id) FILTER (WHERE d.worker_id <> asker OR asker IS NULL),
         array_agg(d.state) FILTER (WHERE d.state <> 'completed'),
         (SELECT array_agg(k.key) FROM k), (SELECT array_agg(k.count) FROM k),
         array_agg(d.seq) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited),
         array_agg(d.batch_seq) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited),
         array_agg(d.awaited) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited),
         array_agg(d.state) FILTER (WHERE d.batch_seq IS NOT NULL OR d.awaited)
    INTO ended, ended_own, completed, accepted, uniques, others, kinds, freed_keys, freed_counts, m_seq, m_batch,
         m_awaited, m_state FROM d;
  counts := array_fill(1::bigint, ARRAY[coalesce(cardinality(kinds), 0)]) || completed::bigint;
  kinds := kinds || 'completed'::text;
  IF uniques IS NOT NULL THEN
    DELETE FROM "headway".unique_key u WHERE u.namespace_id = ns AND u.unique_key = ANY (uniques);
  END IF;
  IF others IS NOT NULL THEN
    UPDATE "headway".worker w SET running = w.running - x.count
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
                   CASE WHEN f.token = '' AND NOT EXISTS (SELECT FROM "headway".job j WHERE j.seq = f.seq) THEN 'ok'
                        WHEN EXISTS (SELECT FROM "headway".outcome o
                                      WHERE o.seq = f.seq AND o.token = f.token AND o.state = f.state) THEN 'same'
                        ELSE 'lost' END AS answer
              FROM (SELECT u.seq, coalesce(u.token, f_tokens[1]) AS token, coalesce(u.state, f_states[1]) AS state,
                           u.o
                      FROM unnest(f_seqs, f_tokens, f_states) WITH ORDINALITY u (seq, token, state, o)) f
             WHERE f.o <> ALL (coalesce(accepted, '{}'))) x;
  END IF;
END $$;
CREATE FUNCTION headway.hold_again_7(ns integer, dependant bigint, OUT done boolean, OUT was text, OUT id text, OUT batch bigint, OUT marked boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  job record;
  kept_epoch int;
  left_park text := '';
BEGIN
  SELECT * INTO job FROM "headway".job j WHERE j.seq = dependant;
  id := job.job_id;
  batch := job.batch_seq;
  marked := job.awaited;
  done := false;
  SELECT o.state, o.epoch INTO was, kept_epoch FROM "headway".outcome o WHERE o.seq = dependant FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    IF job.unique_key IS NOT NULL THEN
      IF EXISTS (SELECT FROM "headway".unique_key u WHERE u.namespace_id = ns AND u.unique_key = job.unique_key) THEN
        done := NULL;
        RETURN;
      END IF;
      INSERT INTO "headway".unique_key (namespace_id, unique_key, job_id) VALUES (ns, job.unique_key, job.job_id);
    END IF;
    DELETE FROM "headway".outcome o WHERE o.seq = dependant;
  ELSE
    DELETE FROM "headway".ready r WHERE r.ctid = ANY (ARRAY(
      SELECT r.ctid FROM "headway".ready r WHERE r.class_id = job.class_id AND r.park = job.park
         AND r.order_key = job.order_key AND r.seq = dependant FOR UPDATE SKIP LOCKED))
    RETURNING r.epoch, r.park INTO kept_epoch, left_park;
    IF NOT FOUND THEN
      DELETE FROM "headway".delayed d WHERE d.ctid = ANY (ARRAY(
        SELECT d.ctid FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = job.due_at AND d.seq = dependant
           FOR UPDATE SKIP LOCKED))
      RETURNING d.epoch INTO kept_epoch;
      IF NOT FOUND THEN
        RETURN;
      END IF;
    END IF;
  END IF;
  IF left_park <> '' THEN
    WITH h AS (SELECT r.order_key, r.seq FROM "headway".ready r WHERE r.class_id = job.class_id AND r.park = left_park
                ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1),
    m AS (UPDATE "headway".park p SET head_key = h.order_key, head_seq = h.seq FROM h
           WHERE p.namespace_id = ns AND p.park = left_park AND p.class_id = job.class_id)
    DELETE FROM "headway".park p WHERE p.namespace_id = ns AND p.park = left_park AND p.class_id = job.class_id
       AND NOT EXISTS (SELECT FROM h);
  END IF;
  DELETE FROM "headway".step s WHERE s.seq = dependant;
  UPDATE "headway".job j SET due_at = 253402300800000, order_key = NULL, park = '', expires_at = NULL WHERE j.seq = dependant;
  INSERT INTO "headway".delayed (due_at, seq, namespace_id, class_id, epoch)
  VALUES (253402300800000, dependant, ns, job.class_id, kept_epoch);
  done := true;
END $$;
CREATE FUNCTION headway.is_list_7(value text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
  RETURN value IS NULL OR json_typeof(value::json) = 'array';
EXCEPTION WHEN data_exception THEN
  RETURN false;
END $$;
CREATE FUNCTION headway.last_key_7(class integer, sharer text) RETURNS bigint
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  RETURN greatest((SELECT r.order_key FROM "headway".ready r WHERE r.class_id = class AND r.tenant = sharer
                    ORDER BY r.order_key DESC LIMIT 1),
                  (SELECT l.order_key FROM "headway".lease l WHERE l.class_id = class AND l.tenant = sharer
                    ORDER BY l.order_key DESC LIMIT 1));
END $$;
CREATE FUNCTION headway.longest_rung_7(counts integer[], limits integer[]) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
BEGIN
  FOR i IN REVERSE cardinality(counts) .. 2 LOOP
    IF "headway".rung_room_7(counts, limits, i) > 0 THEN
      RETURN i;
    END IF;
  END LOOP;
  RETURN 1;
END $$;
CREATE FUNCTION headway.make_fair_7(class integer, number bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
  found_clock bigint;
BEGIN
  SELECT c.clock INTO found_clock FROM "headway".class c WHERE c.class_id = class AND c.fair FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    UPDATE "headway".ready SET tenant = '' WHERE class_id = class AND tenant IS NULL;
    UPDATE "headway".lease SET tenant = '' WHERE class_id = class AND tenant IS NULL;
    UPDATE "headway".class c SET fair = true,
           clock = coalesce((SELECT r.order_key FROM "headway".ready r WHERE r.class_id = class AND r.park = ''
                              ORDER BY r.order_key LIMIT 1), number)
     WHERE c.class_id = class RETURNING c.clock INTO found_clock;
  END IF;
  RETURN found_clock;
END $$;
CREATE FUNCTION headway.mark_awaited_7(ns integer, seqs bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
  found bigint[];
BEGIN
  seqs := ARRAY(SELECT j.seq FROM "headway".job j WHERE j.seq = ANY (seqs) AND j.awaited IS NOT TRUE ORDER BY j.seq);
  IF seqs = '{}' THEN
    RETURN seqs;
  END IF;
  WITH l AS (
    UPDATE "headway".lease l SET awaited = true WHERE l.ctid = ANY (ARRAY(
      SELECT l.ctid FROM "headway".lease l WHERE l.seq = ANY (seqs) FOR UPDATE SKIP LOCKED)) RETURNING l.seq),
  r AS (
    UPDATE "headway".ready r SET awaited = true WHERE r.ctid = ANY (ARRAY(
      SELECT r.ctid FROM unnest(seqs) s (seq)
       CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = s.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT r.ctid FROM "headway".ready r WHERE r.class_id = j.class_id AND r.park = j.park
                              AND r.order_key = j.order_key AND r.seq = j.seq FOR UPDATE SKIP LOCKED) r))
    RETURNING r.seq),
  d AS (
    SELECT d.seq FROM unnest(seqs) s (seq)
     CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = s.seq OFFSET 0) j
     CROSS JOIN LATERAL (SELECT d.seq FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = j.due_at
                            AND d.seq = j.seq FOR UPDATE SKIP LOCKED) d),
  o AS (SELECT o.seq FROM "headway".outcome o WHERE o.seq = ANY (seqs) FOR UPDATE SKIP LOCKED)
  SELECT array_agg(x.seq) INTO found
    FROM (SELECT l.seq FROM l UNION ALL SELECT r.seq FROM r UNION ALL SELECT d.seq FROM d UNION ALL SELECT o.seq FROM
      o) x;
  UPDATE "headway".job j SET awaited = true WHERE j.seq = ANY (found);
  RETURN ARRAY(SELECT s.seq FROM unnest(seqs) s (seq) WHERE s.seq <> ALL (coalesce(found, '{}')));
END $$;
CREATE FUNCTION headway.notify_7(ns integer, kind text, target text) RETURNS void
    LANGUAGE sql
    AS $$
  SELECT pg_notify(n.channel, CASE WHEN octet_length(target) < 7000 THEN kind || target ELSE '*' END)
    FROM "headway".namespace n WHERE n.namespace_id = ns
$$;
CREATE FUNCTION headway.notify_jobs_7(ns integer, job_ids text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  message text;
BEGIN
  IF NOT EXISTS (SELECT FROM "headway".watcher w WHERE w.namespace_id = ns
                    AND w.until_at > "headway".raw_ms_7()) THEN
    RETURN;
  END IF;
  FOR place IN 1 .. coalesce(cardinality(job_ids), 0) BY 200 LOOP
    message := 'j' || array_to_string(job_ids[place:place + 199], ',');
    PERFORM pg_notify(n.channel, CASE WHEN octet_length(message) < 7990 THEN message ELSE 'j' END)
       FROM "headway".namespace n WHERE n.namespace_id = ns;
  END LOOP;
END $$;
CREATE FUNCTION headway.now_ms_7(at bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
  raw bigint := coalesce(at, "headway".raw_ms_7());
  known bigint[] := nullif(current_setting('headway.clock', true), '')::bigint[];  -- of which schema, the clock, ahead
  ahead bigint;
  reached bigint;
  passed bigint;
  back bigint;
BEGIN
  IF known[1] = -609228881 AND raw - known[2] BETWEEN 0 AND 999 THEN
    RETURN raw + known[3];
  END IF;
  SELECT a.last_value, r.last_value INTO ahead, reached FROM "headway".clock_ahead a, "headway".clock_reached r;
  passed := raw + ahead - reached;
  IF passed BETWEEN -1000 AND -1 THEN
    RETURN reached;
  ELSIF passed < 0 THEN
    ahead := reached + 1000 - raw;
    PERFORM setval('"headway".clock_reached', reached + 1000), setval('"headway".clock_ahead', ahead);
  ELSIF passed > 1000 THEN
    IF ahead > 0 THEN
      back := least(ahead, CASE WHEN passed > 60000 THEN passed - 1000 ELSE passed / 20 END);
      ahead := ahead - back;
      PERFORM setval('"headway".clock_ahead', ahead);
    END IF;
    PERFORM setval('"headway".clock_reached', raw + ahead);
  END IF;
  PERFORM set_config('headway.clock', ARRAY[-609228881, raw, ahead]::text, false);
  RETURN raw + ahead;
END $$;
CREATE FUNCTION headway.partitions_maintain_7(at bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
  today bigint := coalesce(at, "headway".raw_ms_7()) / 86400000;
  name text;
  filled boolean;
BEGIN
  IF NOT pg_try_advisory_xact_lock(-1784232701, 0) THEN
    RETURN;
  END IF;
  PERFORM set_config('lock_timeout', '200ms', true);
  FOR day IN today .. today + 2 LOOP
    name := 'outcome_' || to_char(to_timestamp(day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD');
    CONTINUE WHEN to_regclass('"headway".' || name) IS NOT NULL;
    BEGIN
      EXECUTE format('CREATE TABLE "headway".%I PARTITION OF "headway".outcome_completed FOR VALUES FROM (%s) TO (%s)',
                     name, day * 86400000::bigint, (day + 1) * 86400000::bigint);
    EXCEPTION
      -- Jobs of that day lie in the table for any day already, or it is in use.
      WHEN check_violation OR lock_not_available OR duplicate_table THEN NULL;
    END;
  END LOOP;
  FOR name IN
    SELECT c.relname FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = '"headway".outcome_completed'::regclass AND c.relname ~ '^outcome_[0-9]{8}$'
       AND c.relname < 'outcome_' || to_char(to_timestamp((today - 1) * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD')
     ORDER BY c.relname
  LOOP
    EXECUTE format(
      'SELECT EXISTS (SELECT FROM "headway".%I o JOIN "headway".job j ON j.seq = o.seq ORDER BY o.seq DESC LIMIT 1)',
      name) INTO filled;
    CONTINUE WHEN filled;
    BEGIN
      EXECUTE format('DROP TABLE "headway".%I', name);
    EXCEPTION
      WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
END $_$;
CREATE FUNCTION headway.raw_ms_7() RETURNS bigint
    LANGUAGE sql
    AS $$
  SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;
CREATE FUNCTION headway.release_7(ns integer, now_at bigint, alone boolean, seqs bigint[], s_task text[], s_tenant text[], s_step bigint[], OUT f_seq bigint[], OUT f_id text[], OUT eligible integer[], OUT c_batch bigint[], OUT c_kind text[], OUT c_count integer[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  batches bigint[];
  plain bigint[];
  places bigint[];
  delays bigint[];
  dues bigint[];
  shared boolean;
  unknown text;
  job record;
  class_fair boolean;
  class_clock bigint;
  place bigint;
  last bigint;
BEGIN
  SELECT array_agg(x.seq), array_agg(x.batch_seq) FILTER (WHERE x.batch_seq IS NOT NULL), array_agg(x.job_id),
         array_agg(x.class_id) FILTER (WHERE x.due_at <= now_at),
         array_agg(x.seq) FILTER (WHERE x.due_at <= now_at AND NOT x.shared),
         array_agg(CASE WHEN x.back THEN nextval('"headway".sequence') ELSE x.seq END)
           FILTER (WHERE x.due_at <= now_at AND NOT x.shared),
         array_agg(x.seq) FILTER (WHERE x.due_at > now_at), array_agg(x.due_at) FILTER (WHERE x.due_at > now_at),
         bool_or(x.shared AND x.due_at <= now_at),
         json_agg(json_build_array(x.task, coalesce(x.tenant, ''))) FILTER (WHERE x.shared AND x.due_at <= now_at
           AND NOT EXISTS (SELECT FROM unnest(s_task, s_tenant) s (task, tenant)
                            WHERE s.task = x.task AND s.tenant = coalesce(x.tenant, '')))
    INTO f_seq, batches, f_id, eligible, plain, places, delays, dues, shared, unknown
    FROM (SELECT j.seq, j.batch_seq, j.job_id, j.class_id, j.task, j.tenant, p.due_at, p.back,
                 c.fair OR j.tenant IS NOT NULL AS shared
            FROM unnest(seqs) WITH ORDINALITY s (seq, o)
           CROSS JOIN LATERAL (SELECT FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = 253402300800000
                                  AND d.seq = s.seq FOR UPDATE SKIP LOCKED) d
           CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = s.seq OFFSET 0) j
           CROSS JOIN LATERAL (SELECT * FROM "headway".dependant p WHERE p.seq = s.seq OFFSET 0) p
           CROSS JOIN LATERAL (SELECT * FROM "headway".class c WHERE c.class_id = j.class_id OFFSET 0) c
           ORDER BY s.o) x;
  IF unknown IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'HW003', MESSAGE = unknown;
  END IF;
  IF f_seq IS NULL THEN
    RETURN;
  END IF;
  IF batches IS NOT NULL THEN
    SELECT array_agg(x.batch), array_agg('held'::text), array_agg(-x.count) INTO c_batch, c_kind, c_count
      FROM (SELECT b.batch, count(*)::int AS count FROM unnest(batches) b (batch) GROUP BY b.batch) x;
  END IF;
  IF delays IS NOT NULL THEN
    UPDATE "headway".delayed d SET due_at = x.due_at FROM unnest(delays, dues) x (seq, due_at)
     WHERE d.namespace_id = ns AND d.due_at = 253402300800000 AND d.seq = x.seq;
    UPDATE "headway".job j SET due_at = x.due_at FROM unnest(delays, dues) x (seq, due_at) WHERE j.seq = x.seq;
  END IF;
  IF plain IS NOT NULL THEN
    INSERT INTO "headway".ready (order_key, seq, eligible_at, expires_at, timeout_ms, class_id, epoch, attempts, crashes,
                                unique_key, token, error, reason, batch_seq, awaited)
    SELECT x.place, x.seq, now_at, j.expires_at, d.timeout_ms, d.class_id, d.epoch, d.attempts, d.crashes, j.unique_key,
           d.token, d.error, d.reason, j.batch_seq, j.awaited
      FROM unnest(plain, places) x (seq, place)
     CROSS JOIN LATERAL (SELECT * FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = 253402300800000
                            AND d.seq = x.seq OFFSET 0) d
     CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = x.seq OFFSET 0) j;
    DELETE FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = 253402300800000 AND d.seq = ANY (plain);
    UPDATE "headway".job j SET due_at = NULL, park = '', order_key = x.place FROM unnest(plain, places) x (seq, place)
     WHERE j.seq = x.seq;
    -- Their places lie before those that were taken already. A class that another session rewinds is not waited for:
    -- the next scan from the very start finds them.
    UPDATE "headway".class c SET rewound = c.rewound + 1 WHERE c.class_id = ANY (ARRAY(
      SELECT c.class_id FROM "headway".class c WHERE c.class_id = ANY (eligible) AND NOT c.fair
       ORDER BY c.class_id FOR NO KEY UPDATE SKIP LOCKED));
  END IF;
  IF shared THEN
    FOR job IN
      SELECT j.*, p.back, s.step, d.ctid AS spot, d.epoch, d.attempts, d.crashes, d.timeout_ms AS given_ms, d.token,
             d.error, d.reason
        FROM unnest(f_seq) WITH ORDINALITY f (seq, o)
       CROSS JOIN LATERAL (SELECT d.ctid, d.* FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = 253402300800000
                              AND d.seq = f.seq OFFSET 0) d
       CROSS JOIN LATERAL (SELECT * FROM "headway".job j WHERE j.seq = f.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT * FROM "headway".dependant p WHERE p.seq = f.seq OFFSET 0) p
        LEFT JOIN LATERAL (SELECT s.step FROM unnest(s_task, s_tenant, s_step) s (task, tenant, step)
                            WHERE s.task = j.task AND s.tenant = coalesce(j.tenant, '') LIMIT 1) s ON true
       ORDER BY f.o
    LOOP
      SELECT c.fair, c.clock INTO class_fair, class_clock FROM "headway".class c WHERE c.class_id = job.class_id;
      IF NOT class_fair THEN
        IF NOT alone THEN
          RAISE EXCEPTION USING ERRCODE = 'HW006', MESSAGE = 'a class must become fair';
        END IF;
        class_clock := "headway".make_fair_7(
          job.class_id, CASE WHEN job.back THEN nextval('"headway".sequence') ELSE job.seq END);
      END IF;
      -- The order key, as core's order_key gives it.
      last := "headway".last_key_7(job.class_id, coalesce(job.tenant, ''));
      place := CASE WHEN last IS NULL THEN class_clock ELSE greatest(class_clock, last + job.step) END;
      DELETE FROM "headway".delayed d WHERE d.ctid = job.spot;
      UPDATE "headway".job j SET due_at = NULL, park = '', order_key = place WHERE j.seq = job.seq;
      INSERT INTO "headway".ready (order_key, seq, eligible_at, expires_at, timeout_ms, class_id, epoch, attempts,
                                  crashes, tenant, unique_key, token, error, reason, batch_seq, awaited)
      VALUES (place, job.seq, now_at, job.expires_at, job.given_ms, job.class_id, job.epoch, job.attempts, job.crashes,
              coalesce(job.tenant, ''), job.unique_key, job.token, job.error, job.reason, job.batch_seq, job.awaited);
    END LOOP;
  END IF;
END $$;
CREATE FUNCTION headway.rung_room_7(counts integer[], limits integer[], rung integer) RETURNS integer
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
  above int := 0;
  room int := 2147483647;
BEGIN
  FOR i IN REVERSE cardinality(counts) .. 1 LOOP
    above := above + counts[i];
    IF i <= rung THEN
      room := least(room, limits[i] - above);  -- The least of a number and NULL is the number.
    END IF;
  END LOOP;
  RETURN greatest(0, room);
END $$;
CREATE FUNCTION headway.settle_7(ns integer, now_at bigint, alone boolean, unsettled boolean, budget integer, q_source bigint[], q_reached bigint[], q_state text[], u_batch bigint[], u_reached bigint[], dependants bigint[], c_batch bigint[], c_kind text[], c_count integer[], s_task text[], s_tenant text[], s_step bigint[], OUT eligible integer[], OUT told text[], OUT kinds text[], OUT counts bigint[], OUT remains boolean) RETURNS record
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
DECLARE
  stored bigint[];         -- The rows of unsettled that were read.
  left_source bigint[];    -- Sources whose dependant another session is moving,
  left_at bigint[];        -- and the one before it.
  left_batch bigint[];     -- The same for cancelled batches and their members.
  left_member bigint[];
  done int;
  size int;
  whole boolean;           -- The edges are all those into some dependants.
  e_source bigint[];
  e_dependant bigint[];
  e_rule text[];
  e_satisfied boolean[];
  e_text text[];
  e_status text[];
  e_verdict text[];
  e_order int[];
  wanted bigint[];
  reasons text[];
  part record;
  again record;
  redo bigint[];           -- Jobs that are to be held again,
  redo_for bigint[];       -- and because of which source.
  other text;
  released bigint := 0;
  cancelled bigint := 0;
BEGIN
  IF unsettled THEN
    SELECT array_agg(u.place), array_agg(u.source_seq) FILTER (WHERE NOT u.members) || q_source,
           array_agg(u.reached) FILTER (WHERE NOT u.members) || q_reached,
           array_agg(NULL::text) FILTER (WHERE NOT u.members) || q_state,
           array_agg(u.source_seq) FILTER (WHERE u.members) || u_batch,
           array_agg(u.reached) FILTER (WHERE u.members) || u_reached
      INTO stored, q_source, q_reached, q_state, u_batch, u_reached
      FROM (SELECT * FROM "headway".unsettled u WHERE u.namespace_id = ns ORDER BY u.namespace_id, u.place
             LIMIT budget) u;
  END IF;
  IF stored IS NOT NULL THEN
    DELETE FROM "headway".unsettled u WHERE u.namespace_id = ns AND u.place = ANY (stored);
    -- A caller's transaction has written edges without a look at their sources.
    wanted := "headway".mark_awaited_7(ns, q_source);
    left_source := wanted;
    left_at := array_fill(0::bigint, ARRAY[cardinality(wanted)]);
    SELECT c_batch || array_agg(b.seq), c_kind || array_agg('live'::text), c_count || array_agg(0)
      INTO c_batch, c_kind, c_count FROM "headway".batch b WHERE b.seq = ANY (q_source);
  END IF;
  -- Callbacks that ran when a new round of their batch began, and have ended.
  SELECT array_agg(x.dependant_seq), array_agg(x.source_seq) INTO redo, redo_for
    FROM (SELECT DISTINCT ON (e.dependant_seq) e.dependant_seq, e.source_seq FROM "headway".edge e
           WHERE e.again AND e.dependant_seq = ANY (q_source) ORDER BY e.dependant_seq, e.place) x;
  LOOP
    WHILE cardinality(redo) > 0 OR cardinality(dependants) > 0 OR cardinality(q_source) > 0 AND budget > 0 LOOP
      FOR i IN 1 .. coalesce(cardinality(redo), 0) LOOP
        SELECT * INTO part FROM "headway".hold_again_7(ns, redo[i]);
        CONTINUE WHEN part.done IS NULL;
        IF NOT part.done THEN
          left_source := left_source || redo_for[i];
          left_at := left_at || (redo[i] - 1);
          CONTINUE;
        END IF;
        told := told || part.id;
        dependants := dependants || redo[i];
        IF part.marked AND part.was IS NOT NULL THEN
          q_source := q_source || redo[i];
          q_reached := q_reached || 0::bigint;
          q_state := q_state || NULL::text;
        END IF;
        IF part.batch IS NOT NULL THEN
          c_batch := c_batch || array_fill(part.batch, ARRAY[3]);
          c_kind := c_kind || ARRAY['held', 'live', CASE part.was WHEN 'dead_letter' THEN 'failed'
                                                                  ELSE coalesce(part.was, 'live') END];
          c_count := c_count || CASE WHEN part.was IS NULL THEN ARRAY[1, 0, 0] ELSE ARRAY[1, 1, -1] END;
        END IF;
      END LOOP;
      redo := NULL;
      redo_for := NULL;
      whole := coalesce(cardinality(dependants), 0) > 0;
      IF whole THEN
        SELECT array_agg(x.source_seq), array_agg(x.dependant_seq), array_agg(x.rule), array_agg(x.satisfied),
               array_agg(x.source), array_agg(x.status),
               array_agg("headway".verdict_7(x.rule, x.status, x.failing))
          INTO e_source, e_dependant, e_rule, e_satisfied, e_text, e_status, e_verdict
          FROM (SELECT e.*, count(*) FILTER (WHERE "headway".verdict_7(e.rule, e.status, e.failing) = 'cancel')
                         OVER (PARTITION BY e.dependant_seq ORDER BY e.place) AS cancels,
                       "headway".verdict_7(e.rule, e.status, e.failing) = 'cancel' AS is_cancel
                  FROM (SELECT e.*, d.o, s.status, s.failing
                          FROM unnest(dependants) WITH ORDINALITY d (seq, o)
                         CROSS JOIN LATERAL (SELECT * FROM "headway".edge e WHERE e.dependant_seq = d.seq OFFSET 0) e
                         CROSS JOIN LATERAL "headway".source_status_7(e.source_seq, e.satisfied) s) e
                 ORDER BY e.o, e.place) x
         WHERE x.cancels - x.is_cancel::int = 0;
        UPDATE "headway".edge e SET satisfied = false, again = false
          FROM unnest(e_source, e_dependant, e_verdict, e_satisfied) x (source, dependant, verdict, satisfied)
         WHERE x.verdict = 'wait' AND x.satisfied AND e.source_seq = x.source AND e.dependant_seq = x.dependant;
        UPDATE "headway".dependant p SET pending = p.pending + x.count
          FROM (SELECT x.dependant, count(*)::int AS count
                  FROM unnest(e_dependant, e_verdict, e_satisfied) x (dependant, verdict, satisfied)
                 WHERE x.verdict = 'wait' AND x.satisfied GROUP BY x.dependant) x
         WHERE p.seq = x.dependant;
        UPDATE "headway".edge e SET again = false WHERE e.dependant_seq = ANY (dependants) AND e.again;
        dependants := NULL;
      ELSE
        SELECT array_agg(x.source_seq), array_agg(x.dependant_seq), array_agg(x.rule), array_agg(x.satisfied),
               array_agg(x.source), array_agg(x.status),
               array_agg("headway".verdict_7(x.rule, x.status, x.failing)), array_agg(x.o::int), count(*)
          INTO e_source, e_dependant, e_rule, e_satisfied, e_text, e_status, e_verdict, e_order, size
          FROM (SELECT e.*, q.o, coalesce(q.state, s.status) AS status, coalesce(s.failing, false) AS failing
                  FROM unnest(q_source, q_reached, q_state) WITH ORDINALITY q (source, reached, state, o)
                 CROSS JOIN LATERAL (
                   SELECT * FROM "headway".edge e WHERE e.source_seq = q.source AND e.dependant_seq > q.reached
                    ORDER BY e.source_seq, e.dependant_seq LIMIT budget) e
                  LEFT JOIN LATERAL (SELECT * FROM "headway".source_status_7(e.source_seq, e.satisfied)
                                      WHERE q.state IS NULL) s ON true
                 ORDER BY q.o, e.dependant_seq LIMIT budget) x;
        -- With the budget used up, the last source may have more edges, and those behind it were not looked at.
        done := CASE WHEN size < budget THEN cardinality(q_source) ELSE e_order[size] - 1 END;
        IF done < cardinality(q_source) THEN
          q_reached[done + 1] := e_dependant[size];
        END IF;
        q_source := q_source[done + 1:];
        q_reached := q_reached[done + 1:];
        q_state := q_state[done + 1:];
        budget := budget - size;
      END IF;
      CONTINUE WHEN e_source IS NULL;
      IF 'cancel' = ANY (e_verdict) THEN
        SELECT array_agg(x.dependant), array_agg('upstream ' || x.text) INTO wanted, reasons
          FROM (SELECT x.dependant, (array_agg(x.text ORDER BY x.o))[1] AS text, min(x.o) AS o
                  FROM unnest(e_dependant, e_verdict, e_text) WITH ORDINALITY x (dependant, verdict, text, o)
                 WHERE x.verdict = 'cancel' GROUP BY x.dependant ORDER BY 3) x
         CROSS JOIN LATERAL (SELECT FROM "headway".delayed d
                              WHERE d.namespace_id = ns AND d.due_at = 253402300800000 AND d.seq = x.dependant OFFSET 0) d;
        IF wanted IS NOT NULL THEN
          SELECT * INTO part FROM "headway".end_queued_7(ns, now_at, wanted, reasons);
          cancelled := cancelled + coalesce(cardinality(part.e_seq), 0);
          told := told || part.e_id;
          c_batch := c_batch || part.c_batch;
          c_kind := c_kind || part.c_kind;
          c_count := c_count || part.c_count;
          IF part.e_awaited IS NOT NULL THEN
            q_source := q_source || part.e_awaited;
            q_reached := q_reached || array_fill(0::bigint, ARRAY[cardinality(part.e_awaited)]);
            q_state := q_state || array_fill('failed'::text, ARRAY[cardinality(part.e_awaited)]);
          END IF;
          IF cardinality(wanted) > coalesce(cardinality(part.e_seq), 0) THEN
            SELECT left_source || array_agg(x.source), left_at || array_agg(x.dependant - 1) INTO left_source, left_at
              FROM unnest(e_source, e_dependant, e_verdict) x (source, dependant, verdict)
             WHERE x.verdict = 'cancel' AND x.dependant = ANY (wanted)
               AND x.dependant <> ALL (coalesce(part.e_seq, '{}'));
          END IF;
        END IF;
      END IF;
      IF 'satisfy' = ANY (e_verdict) THEN
        UPDATE "headway".edge e SET satisfied = true
          FROM unnest(e_source, e_dependant, e_verdict, e_satisfied) x (source, dependant, verdict, satisfied)
         WHERE x.verdict = 'satisfy' AND NOT x.satisfied AND e.source_seq = x.source
           AND e.dependant_seq = x.dependant;
        UPDATE "headway".dependant p SET pending = p.pending - x.count
          FROM (SELECT x.dependant, count(*)::int AS count
                  FROM unnest(e_dependant, e_verdict, e_satisfied) x (dependant, verdict, satisfied)
                 WHERE x.verdict = 'satisfy' AND NOT x.satisfied GROUP BY x.dependant) x
         WHERE p.seq = x.dependant;
        wanted := ARRAY(
          SELECT x.dependant
            FROM (SELECT x.dependant, max(x.o) AS o
                    FROM unnest(e_dependant, e_verdict) WITH ORDINALITY x (dependant, verdict, o)
                   WHERE x.verdict = 'satisfy' GROUP BY x.dependant) x
           CROSS JOIN LATERAL (SELECT FROM "headway".dependant p WHERE p.seq = x.dependant AND p.pending = 0 OFFSET 0) p
           CROSS JOIN LATERAL (SELECT FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at = 253402300800000
                                  AND d.seq = x.dependant OFFSET 0) d
           ORDER BY x.o);
        IF wanted <> '{}' THEN
          SELECT * INTO part FROM "headway".release_7(ns, now_at, alone, wanted, s_task, s_tenant, s_step);
          released := released + coalesce(cardinality(part.f_seq), 0);
          eligible := eligible || part.eligible;
          told := told || part.f_id;
          c_batch := c_batch || part.c_batch;
          c_kind := c_kind || part.c_kind;
          c_count := c_count || part.c_count;
          IF cardinality(wanted) > coalesce(cardinality(part.f_seq), 0) THEN
            SELECT left_source || array_agg(x.source), left_at || array_agg(x.dependant - 1) INTO left_source, left_at
              FROM unnest(e_source, e_dependant, e_verdict) x (source, dependant, verdict)
             WHERE x.verdict = 'satisfy' AND x.dependant = ANY (wanted)
               AND x.dependant <> ALL (coalesce(part.f_seq, '{}'));
          END IF;
        END IF;
      END IF;
      CONTINUE WHEN whole OR 'live' <> ALL (e_status);
      -- A source is live again, so its dependants wait for it again.
      FOR again IN
        SELECT x.*, h.held, l.leased, o.state, o.reason
          FROM unnest(e_source, e_dependant, e_rule, e_satisfied, e_text, e_status, e_verdict) WITH ORDINALITY
               x (source, dependant, rule, satisfied, text, status, verdict, o)
          LEFT JOIN LATERAL (SELECT true AS held FROM "headway".delayed d WHERE d.namespace_id = ns
                                AND d.due_at = 253402300800000 AND d.seq = x.dependant OFFSET 0) h ON true
          LEFT JOIN LATERAL (SELECT true AS leased FROM "headway".lease l WHERE l.seq = x.dependant OFFSET 0) l ON true
          LEFT JOIN LATERAL (SELECT o.state, o.reason FROM "headway".outcome o WHERE o.seq = x.dependant OFFSET 0) o
                 ON true
         WHERE x.verdict = 'wait' AND x.status = 'live' ORDER BY x.o
      LOOP
        CONTINUE WHEN again.dependant = ANY (redo);
        IF again.satisfied AND again.held THEN
          UPDATE "headway".edge e SET satisfied = false
           WHERE e.source_seq = again.source AND e.dependant_seq = again.dependant;
          UPDATE "headway".dependant p SET pending = p.pending + 1 WHERE p.seq = again.dependant;
        ELSIF again.satisfied AND again.rule IN ('on_failure', 'on_done') AND again.leased THEN
          -- The mark makes the end of the callback's lease come here.
          UPDATE "headway".lease l SET awaited = true WHERE l.ctid = ANY (ARRAY(
            SELECT l.ctid FROM "headway".lease l WHERE l.seq = again.dependant FOR UPDATE SKIP LOCKED));
          IF FOUND THEN
            UPDATE "headway".job j SET awaited = true WHERE j.seq = again.dependant AND j.awaited IS NOT TRUE;
            UPDATE "headway".edge e SET again = true
             WHERE e.source_seq = again.source AND e.dependant_seq = again.dependant;
          ELSE
            left_source := left_source || again.source;
            left_at := left_at || (again.dependant - 1);
          END IF;
        ELSIF again.satisfied AND again.rule IN ('on_failure', 'on_done') THEN
          redo := redo || again.dependant;
          redo_for := redo_for || again.source;
        ELSIF again.state = 'cancelled' AND again.reason = 'upstream ' || again.text THEN
          SELECT e.source INTO other FROM "headway".edge e
           CROSS JOIN LATERAL "headway".source_status_7(e.source_seq, e.satisfied) s
           WHERE e.dependant_seq = again.dependant
             AND "headway".verdict_7(e.rule, s.status, s.failing) = 'cancel' ORDER BY e.place LIMIT 1;
          IF FOUND THEN
            UPDATE "headway".outcome o SET reason = 'upstream ' || other WHERE o.seq = again.dependant;
            told := told || (SELECT j.job_id FROM "headway".job j WHERE j.seq = again.dependant);
          ELSE
            redo := redo || again.dependant;
            redo_for := redo_for || again.source;
          END IF;
        END IF;
      END LOOP;
    END LOOP;
    WHILE cardinality(u_batch) > 0 AND budget > 0 LOOP
      SELECT * INTO part FROM "headway".cancel_members_7(ns, now_at, u_batch[1], u_reached[1], budget);
      cancelled := cancelled + coalesce(cardinality(part.e_seq), 0);
      told := told || part.e_id;
      c_batch := c_batch || part.c_batch;
      c_kind := c_kind || part.c_kind;
      c_count := c_count || part.c_count;
      IF part.e_awaited IS NOT NULL THEN
        q_source := q_source || part.e_awaited;
        q_reached := q_reached || array_fill(0::bigint, ARRAY[cardinality(part.e_awaited)]);
        q_state := q_state || array_fill('failed'::text, ARRAY[cardinality(part.e_awaited)]);
      END IF;
      IF part.missed IS NULL AND part.size = budget THEN
        u_reached[1] := part.reached;
      ELSE
        IF part.missed IS NOT NULL THEN
          left_batch := left_batch || u_batch[1];
          left_member := left_member || part.missed;
        END IF;
        u_batch := u_batch[2:];
        u_reached := u_reached[2:];
      END IF;
      budget := budget - part.size;
    END LOOP;
    EXIT WHEN coalesce(cardinality(c_batch), 0) = 0;
    SELECT * INTO part FROM "headway".count_batches_7(now_at, c_batch, c_kind, c_count);
    c_batch := part.c_batch;
    c_kind := part.c_kind;
    c_count := part.c_count;
    IF part.reopened IS NOT NULL THEN
      DELETE FROM "headway".unsettled u WHERE u.namespace_id = ns AND u.members AND u.source_seq = ANY (part.reopened);
      SELECT array_agg(u.batch), array_agg(u.reached) INTO u_batch, u_reached
        FROM unnest(u_batch, u_reached) u (batch, reached) WHERE u.batch <> ALL (part.reopened);
      SELECT array_agg(u.batch), array_agg(u.reached) INTO left_batch, left_member
        FROM unnest(left_batch, left_member) u (batch, reached) WHERE u.batch <> ALL (part.reopened);
    END IF;
    IF part.touched IS NOT NULL THEN
      q_source := q_source || part.touched;
      q_reached := q_reached || array_fill(0::bigint, ARRAY[cardinality(part.touched)]);
      q_state := q_state || array_fill(NULL::text, ARRAY[cardinality(part.touched)]);
    END IF;
  END LOOP;
  remains := false;
  IF unsettled OR cardinality(q_source) > 0 OR cardinality(u_batch) > 0 OR left_source IS NOT NULL
     OR left_batch IS NOT NULL THEN
    INSERT INTO "headway".unsettled (namespace_id, source_seq, members, reached)
    SELECT ns, x.source, false, x.reached FROM unnest(q_source || left_source, q_reached || left_at) x (source, reached)
    UNION ALL
    SELECT ns, x.batch, true, x.reached FROM unnest(u_batch || left_batch, u_reached || left_member) x (batch, reached);
    remains := EXISTS (SELECT FROM "headway".unsettled u WHERE u.namespace_id = ns);
  END IF;
  kinds := ARRAY['unheld', 'cancelled'];
  counts := ARRAY[released, cancelled];
END $$;
CREATE FUNCTION headway.settle_ended_7(ns integer, now_at bigint, alone boolean, unsettled boolean, m_seq bigint[], m_batch bigint[], m_awaited boolean[], m_state text[], s_task text[], s_tenant text[], s_step bigint[], OUT eligible integer[], OUT told text[], OUT kinds text[], OUT counts bigint[], OUT remains boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
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
    FROM "headway".settle_7(ns, now_at, alone, unsettled, 100, q_source, q_reached, q_state, NULL,
      NULL, NULL,
                                   c_batch, c_kind, c_count, s_task, s_tenant, s_step) s;
END $$;
CREATE FUNCTION headway.snapshot_7(ns integer, at bigint, bound integer, f_class integer[], f_floor bigint[], f_rewound integer[], rung_names text[]) RETURNS text
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
BEGIN
RETURN json_build_array(
  (SELECT json_agg(json_build_array(c.class_id, c.lane, c.rung, c.needs, c.persist, c.fair, line.waiting,
                                    line.oldest_at, line.head_key, parks.opened, parks.head_key, c.rewound, c.clock)
                   ORDER BY c.lane, c.needs, c.rung, c.persist)
     FROM "headway".class c
    CROSS JOIN LATERAL (SELECT array_position(f_class, c.class_id) AS place) p
    CROSS JOIN LATERAL (SELECT coalesce(CASE WHEN f_rewound[p.place] = c.rewound THEN f_floor[p.place] END,
                                        -9223372036854775808) AS floor) f
    LEFT JOIN LATERAL (
      SELECT r.order_key, r.eligible_at FROM "headway".ready r
       WHERE c.persist AND r.class_id = c.class_id AND r.park = '' AND r.order_key >= f.floor
       ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) head ON true
    CROSS JOIN LATERAL (
      SELECT (SELECT count(*) FROM (SELECT FROM "headway".ready r WHERE r.class_id = c.class_id AND r.park = ''
                                       AND r.order_key >= head.order_key LIMIT bound) x) AS waiting,
             CASE WHEN c.fair
                  THEN (SELECT r.eligible_at FROM "headway".ready r
                         WHERE r.class_id = c.class_id AND r.tenant IS NOT NULL AND r.park = ''
                         ORDER BY r.eligible_at LIMIT 1)
                  ELSE head.eligible_at END AS oldest_at,
             head.order_key AS head_key
       WHERE c.persist
      UNION ALL
      SELECT (SELECT count(*) FROM (SELECT FROM "headway".transient t WHERE t.class_id = c.class_id LIMIT bound) x),
             CASE WHEN EXISTS (SELECT FROM "headway".transient t WHERE t.class_id = c.class_id) THEN at END,
             (SELECT t.seq FROM "headway".transient t WHERE t.class_id = c.class_id ORDER BY t.class_id, t.seq LIMIT 1)
       WHERE NOT c.persist) line
    CROSS JOIN LATERAL (
      SELECT count(*) AS opened, min(p.head_key) AS head_key FROM "headway".park p
       WHERE p.namespace_id = ns AND p.class_id = c.class_id AND (p.open OR p.open_at <= at)) parks
    WHERE c.namespace_id = ns),
  (SELECT min(soon) FROM (
     SELECT (SELECT d.due_at FROM "headway".delayed d WHERE d.namespace_id = ns AND d.due_at < 253402300800000
              ORDER BY d.namespace_id, d.due_at LIMIT 1)
     UNION ALL
     SELECT (SELECT p.open_at FROM "headway".park p WHERE p.namespace_id = ns AND p.open_at > at
              ORDER BY p.open_at LIMIT 1)) x (soon)),
  CASE WHEN rung_names IS NOT NULL
         OR EXISTS (SELECT FROM "headway".class c WHERE c.namespace_id = ns AND c.rung = 'interactive')
       THEN json_build_array(
         (SELECT coalesce(sum(w.slots), 0) FROM "headway".worker w
           WHERE w.namespace_id = ns AND w.state = 'active' AND w.lease_ends_at > at),
         (SELECT coalesce(sum(w.running), 0) FROM "headway".worker w WHERE w.namespace_id = ns),
         ARRAY(SELECT coalesce((SELECT u.count FROM "headway".limit_usage u
                                 WHERE u.namespace_id = ns AND u.limit_key = '=rung:' || r.name), 0)
                 FROM unnest(rung_names) WITH ORDINALITY r (name, o) ORDER BY r.o),
         coalesce((SELECT json_agg(json_build_array(j.job_id, c.rung, l.assigned, l.started_at) ORDER BY l.seq)
                     FROM "headway".lease l JOIN "headway".class c ON c.class_id = l.class_id
                     JOIN "headway".job j ON j.seq = l.seq
                    WHERE c.namespace_id = ns AND c.rung IN ('default', 'interactive')), '[]')) END);
END $$;
CREATE FUNCTION headway.source_status_7(source bigint, satisfied boolean, OUT status text, OUT failing boolean) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  SELECT CASE WHEN b.finished_at IS NULL THEN 'live' WHEN b.failed + b.cancelled = 0 THEN 'completed' ELSE 'failed' END,
         b.failing INTO status, failing FROM "headway".batch b WHERE b.seq = source;
  IF FOUND THEN
    RETURN;
  END IF;
  failing := false;
  SELECT CASE WHEN o.state = 'completed' THEN 'completed' ELSE 'failed' END INTO status
    FROM "headway".outcome o WHERE o.seq = source;
  IF NOT FOUND AND EXISTS (SELECT FROM "headway".job j WHERE j.seq = source) THEN
    status := 'live';
  ELSIF status IS NULL THEN
    status := CASE WHEN satisfied THEN 'completed' ELSE 'failed' END;
    failing := satisfied;
  END IF;
END $$;
CREATE FUNCTION headway.submit_7(ns integer, at bigint, rules bigint, own boolean, careful boolean, g_class integer[], g_tenant text[], g_persist boolean[], g_lane text[], g_rung text[], g_needs text[], ids text[], tasks text[], payloads bytea[], groups integer[], steps bigint[], timeouts bigint[], retries integer[], retry text[], delays bigint[], dues bigint[], expiries bigint[], keys text[], key_ms bigint[], digests bytea[], uniques text[], traces text[], limits text[], batch bigint, members boolean[], awaited boolean[], OUT status text, OUT bad integer, OUT what text, OUT known integer[], OUT known_ids text[], OUT classes integer[], OUT numbers bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  now_at bigint := "headway".now_ms_7(at);
  size int := cardinality(ids);
  given int[];
  skip boolean[];
  places bigint[];
  g_fair boolean[];
  g_clock bigint[];
  g_last bigint[];      -- The highest key given in a group so far.
  g_loaded boolean[];
  g_first bigint[];     -- The first and
  g_plain bigint[];     -- the last number given in a group that tenants do not share.
  shared boolean;
  fresh int := size;
  eligible int[];
  first_at int;
  number bigint;
  g int;
  kept record;
BEGIN
  IF array_position(g_class, NULL) IS NOT NULL THEN
    SELECT array_agg(coalesce(x.class, c.class_id) ORDER BY x.o) INTO g_class
      FROM unnest(g_class, g_lane, g_rung, g_needs, g_persist) WITH ORDINALITY x (class, lane, rung, needs, persist, o)
      LEFT JOIN "headway".class c ON c.namespace_id = ns AND c.lane = x.lane AND c.rung = x.rung
       AND c.persist = x.persist
            AND c.needs = ARRAY(SELECT json_array_elements_text(x.needs::json)) COLLATE "C";
  END IF;
  given := g_class;
  SELECT array_agg(coalesce(c.fair, false) ORDER BY x.o), array_agg(coalesce(c.clock, 0) ORDER BY x.o),
         bool_or(x.persist AND (c.fair OR x.tenant IS NOT NULL))
    INTO g_fair, g_clock, shared
    FROM unnest(g_class, g_tenant, g_persist) WITH ORDINALITY x (class, tenant, persist, o)
    LEFT JOIN "headway".class c ON c.class_id = x.class;
  IF shared AND NOT own AND rules IS DISTINCT FROM (SELECT n.rules FROM "headway".namespace n WHERE n.namespace_id =
    ns) THEN
    status := 'stale';
    RETURN;
  END IF;
  IF delays IS NOT NULL OR dues IS NOT NULL THEN
    dues := ARRAY(SELECT CASE WHEN greatest(coalesce(x.due, 0), now_at + coalesce(x.delay, 0)) > now_at
                              THEN greatest(coalesce(x.due, 0), now_at + coalesce(x.delay, 0)) END
                    FROM unnest(dues, delays) WITH ORDINALITY x (due, delay, o) ORDER BY x.o);
  END IF;
  IF own AND shared THEN
    -- A place among tenants is not given before the caller commits: the next exchange does that.
    dues := ARRAY(SELECT coalesce(x.due, now_at) FROM unnest(ids, dues) WITH ORDINALITY x (id, due, o) ORDER BY x.o);
    shared := false;
  END IF;
  FOR round IN 1 .. 100 LOOP
    BEGIN
      known := '{}';
      known_ids := '{}';
      fresh := size;
      g_class := given;
      IF careful OR EXISTS (SELECT FROM "headway".job j WHERE j.job_id = ANY (ids) AND j.namespace_id = ns) THEN
        skip := array_fill(false, ARRAY[size]);
        FOR i IN 1 .. size LOOP
          bad := i - 1;
          SELECT j.task, j.payload INTO kept FROM "headway".job j WHERE j.job_id = ids[i] AND j.namespace_id = ns;
          IF NOT FOUND THEN
            first_at := array_position(ids, ids[i]);
            WHILE first_at < i AND (skip[first_at] OR NOT g_persist[groups[first_at]]) LOOP
              first_at := array_position(ids, ids[i], first_at + 1);
            END LOOP;
            IF first_at < i THEN
              SELECT tasks[first_at] AS task, payloads[first_at] AS payload INTO kept;
            END IF;
          ELSE
            first_at := 0;
          END IF;
          IF first_at < i THEN
            what := 'job id';
            IF kept.task <> tasks[i] OR kept.payload <> payloads[i] THEN
              RAISE EXCEPTION USING ERRCODE = 'HW001';
            END IF;
            skip[i] := true;
            CONTINUE;
          END IF;
          IF keys[i] IS NOT NULL THEN
            what := 'idempotency key';
            SELECT k.job_id, k.digest INTO kept FROM "headway".idempotency k
             WHERE k.namespace_id = ns AND k.tenant = coalesce(g_tenant[groups[i]], '') AND k.idempotency_key = keys[i]
               AND k.until_at > now_at;
            IF FOUND THEN
              IF kept.digest <> digests[i] THEN
                RAISE EXCEPTION USING ERRCODE = 'HW001';
              END IF;
              skip[i] := true;
              known := known || (i - 1);
              known_ids := known_ids || kept.job_id;
              CONTINUE;
            END IF;
          END IF;
          IF uniques[i] IS NOT NULL THEN
            INSERT INTO "headway".unique_key (namespace_id, unique_key, job_id) VALUES (ns, uniques[i], ids[i])
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
              SELECT u.job_id INTO kept FROM "headway".unique_key u
               WHERE u.namespace_id = ns AND u.unique_key = uniques[i];
              IF NOT FOUND THEN
                RAISE unique_violation;  -- It was let go of just now.
              END IF;
              skip[i] := true;
              known := known || (i - 1);
              known_ids := known_ids || kept.job_id;
              CONTINUE;
            END IF;
          END IF;
          IF keys[i] IS NOT NULL THEN
            INSERT INTO "headway".idempotency AS k (namespace_id, tenant, idempotency_key, until_at, job_id, digest)
            VALUES (ns, coalesce(g_tenant[groups[i]], ''), keys[i], now_at + key_ms[i], ids[i], digests[i])
                ON CONFLICT (namespace_id, tenant, idempotency_key)
                DO UPDATE SET until_at = excluded.until_at, job_id = excluded.job_id, digest = excluded.digest
                 WHERE k.until_at <= now_at;
            IF NOT FOUND THEN
              RAISE unique_violation;  -- Another client was quicker.
            END IF;
          END IF;
        END LOOP;
        SELECT count(*) INTO fresh FROM unnest(skip) s (skipped) WHERE NOT s.skipped;
        IF fresh = 0 THEN
          numbers := array_fill(0::bigint, ARRAY[size]);
          status := 'ok';
          RETURN;
        END IF;
        -- Numbers are taken for the new ones only, in order.
        SELECT array_agg(n ORDER BY o) INTO numbers
          FROM (SELECT CASE WHEN s.skipped THEN 0 ELSE nextval('"headway".sequence') END AS n, s.o
                  FROM unnest(skip) WITH ORDINALITY s (skipped, o) ORDER BY s.o) x;
      ELSE
        skip := NULL;
        numbers := ARRAY(SELECT nextval('"headway".sequence') FROM generate_series(1, size));
      END IF;
      IF array_position(g_class, NULL) IS NOT NULL THEN
        FOR h IN 1 .. cardinality(g_class) LOOP
          CONTINUE WHEN g_class[h] IS NOT NULL
            OR NOT EXISTS (SELECT FROM unnest(groups) WITH ORDINALITY x (g, o) WHERE x.g = h AND skip[x.o] IS NOT TRUE);
          INSERT INTO "headway".class (namespace_id, lane, rung, needs, persist)
          VALUES (ns, g_lane[h], g_rung[h], ARRAY(SELECT json_array_elements_text(g_needs[h]::json)), g_persist[h])
              ON CONFLICT (namespace_id, lane, rung, needs, persist) DO UPDATE SET persist = excluded.persist
              RETURNING class_id INTO g;
          g_class[h] := g;
        END LOOP;
      END IF;
      places := numbers;
      IF shared THEN
        -- The order key, as core's order_key gives it.
        g_last := array_fill(NULL::bigint, ARRAY[cardinality(g_class)]);
        g_first := g_last;
        g_plain := g_last;
        g_loaded := array_fill(false, ARRAY[cardinality(g_class)]);
        FOR i IN 1 .. size LOOP
          CONTINUE WHEN skip[i] OR dues[i] IS NOT NULL;
          g := groups[i];
          CONTINUE WHEN NOT g_persist[g];
          IF NOT g_fair[g] AND g_tenant[g] IS NULL THEN
            g_first[g] := coalesce(g_first[g], numbers[i]);
            g_plain[g] := numbers[i];
            CONTINUE;
          END IF;
          IF NOT g_fair[g] THEN
            number := numbers[i];
            FOR h IN 1 .. cardinality(g_class) LOOP
              IF g_class[h] = g_class[g] AND g_tenant[h] IS NULL AND g_persist[h] THEN
                number := coalesce(g_first[h], number);
              END IF;
            END LOOP;
            number := "headway".make_fair_7(g_class[g], number);
            FOR h IN 1 .. cardinality(g_class) LOOP
              IF g_class[h] = g_class[g] THEN
                g_fair[h] := true;
                g_clock[h] := number;
              END IF;
            END LOOP;
          END IF;
          IF NOT g_loaded[g] THEN
            g_last[g] := greatest("headway".last_key_7(g_class[g], coalesce(g_tenant[g], '')), g_plain[g]);
            g_loaded[g] := true;
          END IF;
          places[i] := CASE WHEN g_last[g] IS NULL THEN g_clock[g] ELSE greatest(g_clock[g], g_last[g] + steps[i]) END;
          g_last[g] := greatest(g_last[g], places[i]);
        END LOOP;
      END IF;
      INSERT INTO "headway".job (seq, namespace_id, class_id, order_key, due_at, submitted_at, expires_at, timeout_ms,
                                max_retries, job_id, task, tenant, trace_id, retry, idempotency_key, unique_key, limits,
                                payload, batch_seq, awaited)
      SELECT x.n, ns, g_class[x.g], CASE WHEN x.due IS NULL THEN x.place END, x.due, now_at, now_at + x.expires,
             x.timeout, x.most, x.id, x.task, g_tenant[x.g], x.trace, x.retry, x.key, x.uniq, x.limits, x.payload,
             CASE WHEN members[x.o] THEN batch END, awaited[x.o] OR NULL
        FROM unnest(numbers, groups, places, dues, expiries, timeouts, retries, ids, tasks, traces, retry, keys,
                    uniques, limits, payloads)
             WITH ORDINALITY x (n, g, place, due, expires, timeout, most, id, task, trace, retry, key, uniq, limits,
                                payload, o)
       WHERE g_persist[x.g] AND skip[x.o] IS NOT TRUE;
      INSERT INTO "headway".ready (order_key, seq, eligible_at, expires_at, class_id, tenant, unique_key, batch_seq,
                                  awaited)
      SELECT x.place, x.n, now_at, now_at + x.expires, g_class[x.g],
             CASE WHEN g_fair[x.g] THEN coalesce(g_tenant[x.g], '') END, x.uniq,
             CASE WHEN members[x.o] THEN batch END, awaited[x.o] OR NULL
        FROM unnest(numbers, groups, places, dues, expiries, uniques)
            WITH ORDINALITY x (n, g, place, due, expires, uniq, o)
       WHERE x.due IS NULL AND g_persist[x.g] AND skip[x.o] IS NOT TRUE;
      EXIT;
    EXCEPTION
      WHEN SQLSTATE 'HW001' THEN
        status := 'conflict';
        RETURN;
      WHEN unique_violation THEN
        careful := true;
        IF round = 100 THEN
          RAISE;
        END IF;
    END;
  END LOOP;
  IF dues IS NOT NULL THEN
    INSERT INTO "headway".delayed (due_at, seq, namespace_id, class_id)
    SELECT x.due, x.n, ns, g_class[x.g] FROM unnest(numbers, groups, dues) WITH ORDINALITY x (n, g, due, o)
     WHERE x.due IS NOT NULL AND g_persist[x.g] AND skip[x.o] IS NOT TRUE;
  END IF;
  IF expiries IS NOT NULL THEN
    INSERT INTO "headway".expiry (namespace_id, expires_at, seq)
    SELECT ns, now_at + x.expires, x.n FROM unnest(numbers, expiries) WITH ORDINALITY x (n, expires, o)
     WHERE x.expires IS NOT NULL AND skip[x.o] IS NOT TRUE;
  END IF;
  IF false = ANY (g_persist) THEN
    INSERT INTO "headway".transient (seq, timeout_ms, class_id, job_id, task, tenant, trace_id, payload)
    SELECT x.n, x.timeout, g_class[x.g], x.id, x.task, g_tenant[x.g], x.trace, x.payload
      FROM unnest(numbers, groups, timeouts, ids, tasks, traces, payloads)
          WITH ORDINALITY x (n, g, timeout, id, task, trace, payload, o)
     WHERE NOT g_persist[x.g] AND skip[x.o] IS NOT TRUE;
  END IF;
  PERFORM "headway".count_up_7(ns, now_at, ARRAY['submitted'], ARRAY[fresh]::bigint[], own);
  IF own THEN
    -- Who begins to wait before the caller commits would not be seen from here.
    PERFORM pg_notify(n.channel, '*') FROM "headway".namespace n WHERE n.namespace_id = ns;
  ELSE
    IF size = 1 THEN
      eligible := CASE WHEN dues[1] IS NULL THEN ARRAY[g_class[1]] END;
    ELSE
      SELECT array_agg(g_class[x.g] ORDER BY x.o) INTO eligible FROM unnest(groups, dues) WITH ORDINALITY x (g, due, o)
       WHERE x.due IS NULL AND skip[x.o] IS NOT TRUE;
    END IF;
    PERFORM "headway".wake_7(ns, now_at, eligible, NULL);
  END IF;
  PERFORM "headway".notify_jobs_7(ns, ids || known_ids);
  classes := g_class;
  status := 'ok';
END $$;
CREATE FUNCTION headway.submit_graph_7(ns integer, at bigint, rules bigint, own boolean, careful boolean, alone boolean, g_class integer[], g_tenant text[], g_persist boolean[], g_lane text[], g_rung text[], g_needs text[], ids text[], tasks text[], payloads bytea[], groups integer[], steps bigint[], timeouts bigint[], retries integer[], retry text[], delays bigint[], dues bigint[], expiries bigint[], keys text[], key_ms bigint[], digests bytea[], uniques text[], traces text[], limits text[], members boolean[], awaited boolean[], back boolean, w_node integer[], w_due bigint[], w_delay bigint[], e_node integer[], e_place integer[], e_source text[], e_inner integer[], e_rule text[], given_id text, creates boolean, b_name text, b_key text, b_tenant text, b_parent text, b_open boolean, s_task text[], s_tenant text[], s_step bigint[], OUT status text, OUT bad integer, OUT what text, OUT known integer[], OUT known_ids text[], OUT classes integer[], OUT batch_id text, OUT created boolean) RETURNS record
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
DECLARE
  now_at bigint := "headway".now_ms_7(at);
  size int := coalesce(cardinality(ids), 0);
  target record;
  parent record;
  parent_seq bigint;
  locked boolean := false;
  done record;
  moved record;
  numbers bigint[];        -- The numbers of the new jobs, 0 for others.
  node_seq bigint[];       -- The numbers of all jobs.
  node_id text[];
  fresh int := 0;          -- New members,
  fresh_held int := 0;     -- and those of them that are held.
  existing bigint[];       -- Sources that existed before,
  dependants bigint[];     -- and the new jobs that wait for one of them.
  missed bigint[];
BEGIN
  created := false;
  LOOP
    SELECT NULL::bigint AS seq, given_id AS batch_id, b_tenant AS tenant, NULL::bigint AS cancel_at,
           NULL::bigint AS finished_at INTO target;
    IF given_id IS NOT NULL THEN
      SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO target FROM "headway".batch b
       WHERE b.namespace_id = ns AND b.key = b_key AND coalesce(b.tenant, '') = coalesce(b_tenant, '');
      IF NOT FOUND THEN
        SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO target FROM "headway".batch b
         WHERE b.batch_id = given_id AND b.namespace_id = ns;
      END IF;
      IF own AND target.seq IS NOT NULL THEN
        -- The caller must be able to go on after an error, so the batch may not end before its commit.
        SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO target FROM "headway".batch b
         WHERE b.seq = target.seq FOR NO KEY UPDATE;
      END IF;
      created := creates AND target.seq IS NULL;
      IF created AND b_parent IS NOT NULL THEN
        SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO parent FROM "headway".batch b
         WHERE b.batch_id = b_parent AND b.namespace_id = ns;
        IF parent.seq IS NULL OR parent.cancel_at IS NOT NULL OR parent.finished_at IS NOT NULL THEN
          status := CASE WHEN parent.seq IS NULL THEN 'missing' WHEN parent.cancel_at IS NULL THEN 'ended'
                         ELSE 'cancelled' END;
          what := b_parent;
          RETURN;
        END IF;
        IF parent.tenant <> coalesce(b_tenant, '') THEN
          status := 'tenant';
          what := b_parent;
          RETURN;
        END IF;
        parent_seq := parent.seq;
      ELSIF NOT created AND target.seq IS NULL THEN
        status := 'missing';
        what := given_id;
        RETURN;
      ELSIF (target.cancel_at IS NOT NULL OR target.finished_at IS NOT NULL) AND EXISTS (
          SELECT FROM unnest(ids, members) i (id, member)
           WHERE i.member AND NOT EXISTS (SELECT FROM "headway".job j WHERE j.job_id = i.id AND j.namespace_id = ns))
             THEN
        status := CASE WHEN target.cancel_at IS NULL THEN 'ended' ELSE 'cancelled' END;
        what := target.batch_id;
        RETURN;
      END IF;
      IF created THEN
        target.tenant := b_tenant;
      END IF;
      SELECT i.o - 1, coalesce(target.batch_id, given_id), 'tenant' INTO bad, what, status
        FROM unnest(members, groups) WITH ORDINALITY i (member, class_group, o)
       WHERE i.member AND target.tenant IS NOT NULL AND g_tenant[i.class_group] IS DISTINCT FROM target.tenant
       ORDER BY i.o LIMIT 1;
      IF FOUND THEN
        RETURN;
      END IF;
    END IF;
    IF NOT created THEN
      e_inner := array_replace(e_inner, 0, NULL);
    END IF;
    IF e_node IS NOT NULL THEN
      WITH RECURSIVE around AS (
        SELECT given_id COLLATE "C" AS id, CASE WHEN created THEN parent_seq
                                    ELSE (SELECT b.parent_seq FROM "headway".batch b WHERE b.seq = target.seq) END AS seq
        UNION ALL SELECT b.batch_id, b.parent_seq FROM around a JOIN "headway".batch b ON b.seq = a.seq)
      SELECT x.node - 1, x.source, CASE WHEN x.cycle THEN 'cycle' WHEN x.found THEN 'foreign' ELSE 'unknown' END
        INTO bad, what, status
        FROM (SELECT e.node, e.source, e.o,
                     members[e.node] AND e.source IN (SELECT a.id FROM around a UNION ALL SELECT target.batch_id) AS
                       cycle,
                     e.inner_node IS NOT NULL OR j.seq IS NOT NULL OR b.seq IS NOT NULL AS found,
                     CASE WHEN e.inner_node > 0 THEN g_tenant[groups[e.inner_node]] WHEN e.inner_node = 0 THEN b_tenant
                          ELSE coalesce(j.tenant, b.tenant) END AS tenant
                FROM unnest(e_node, e_source, e_inner) WITH ORDINALITY e (node, source, inner_node, o)
                LEFT JOIN LATERAL (SELECT j.seq, j.tenant FROM "headway".job j WHERE e.inner_node IS NULL
                                      AND j.job_id = e.source AND j.namespace_id = ns OFFSET 0) j ON true
                LEFT JOIN LATERAL (SELECT b.seq, b.tenant FROM "headway".batch b WHERE e.inner_node IS NULL
                                      AND b.batch_id = e.source AND b.namespace_id = ns OFFSET 0) b ON true) x
       WHERE x.cycle OR NOT x.found OR g_tenant[groups[x.node]] <> coalesce(x.tenant, '')
       ORDER BY x.o LIMIT 1;
      IF FOUND THEN
        RETURN;
      END IF;
    END IF;
    IF NOT own AND NOT locked AND (
         EXISTS (SELECT FROM unnest(e_inner) e (inner_node) WHERE e.inner_node IS NULL)
         OR created AND NOT b_open AND true <> ALL (coalesce(members, '{}'))) THEN
      IF alone THEN
        PERFORM pg_advisory_xact_lock(-940774432, ns);
      ELSE
        PERFORM pg_advisory_xact_lock_shared(-940774432, ns);
      END IF;
      PERFORM pg_advisory_xact_lock(797684821, ns);
      locked := true;
    END IF;
    EXIT WHEN NOT created;
    target.seq := nextval('"headway".sequence');
    INSERT INTO "headway".batch (seq, namespace_id, batch_id, name, key, tenant, parent_seq, open, created_at)
    VALUES (target.seq, ns, given_id, b_name, b_key, b_tenant, parent_seq, b_open, now_at)
        ON CONFLICT DO NOTHING;
    EXIT WHEN FOUND;
  END LOOP;
  batch_id := target.batch_id;
  IF created THEN
    batch_id := given_id;
  END IF;
  known := '{}';
  known_ids := '{}';
  status := 'ok';
  IF size > 0 THEN
    SELECT * INTO done FROM "headway".submit_7(
      ns, at, rules, own, careful, g_class, g_tenant, g_persist, g_lane, g_rung, g_needs, ids, tasks, payloads, groups,
      steps, timeouts, retries, retry, delays, dues, expiries, keys, key_ms, digests, uniques, traces, limits,
      target.seq, members, awaited);
    status := done.status;
    bad := done.bad;
    what := done.what;
    known := done.known;
    known_ids := done.known_ids;
    classes := done.classes;
    numbers := done.numbers;
    IF status <> 'ok' THEN
      IF created THEN
        DELETE FROM "headway".batch b WHERE b.seq = target.seq;
      END IF;
      RETURN;
    END IF;
    IF target.seq IS NOT NULL THEN
      SELECT count(*) INTO fresh FROM unnest(numbers, members) x (number, member) WHERE x.number > 0 AND x.member;
      SELECT count(*) INTO fresh_held FROM unnest(w_node) w (node) WHERE numbers[w.node] > 0 AND members[w.node];
    END IF;
  END IF;
  IF fresh > 0 THEN
    UPDATE "headway".batch b SET total = b.total + fresh, live = b.live + fresh, held = b.held + fresh_held
     WHERE b.seq = target.seq AND b.cancel_at IS NULL AND b.finished_at IS NULL;
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = batch_id;
    END IF;
  END IF;
  IF created AND parent_seq IS NOT NULL THEN
    UPDATE "headway".batch b SET total = b.total + 1, live = b.live + 1, children = b.children + 1
     WHERE b.seq = parent.seq AND b.cancel_at IS NULL AND b.finished_at IS NULL;
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = b_parent;
    END IF;
  END IF;
  IF w_node IS NOT NULL THEN
    node_seq := numbers;
    node_id := ids;
    IF 0 = ANY (numbers) THEN
      FOR i IN 1 .. cardinality(known) LOOP
        node_id[known[i] + 1] := known_ids[i];
      END LOOP;
      node_seq := ARRAY(SELECT CASE WHEN n.number > 0 THEN n.number
                                    ELSE (SELECT j.seq FROM "headway".job j
                                           WHERE j.job_id = n.id AND j.namespace_id = ns) END
                          FROM unnest(numbers, node_id) WITH ORDINALITY n (number, id, o) ORDER BY n.o);
    END IF;
    INSERT INTO "headway".edge (source_seq, dependant_seq, place, satisfied, rule, source)
    SELECT coalesce(CASE WHEN e.inner_node > 0 THEN node_seq[e.inner_node] WHEN e.inner_node = 0 THEN target.seq END,
                    j.seq, b.seq, 0),  -- A key may stand for a job that was pruned. It has failed for its dependants.
           numbers[e.node], e.place, false, e.rule,
           CASE WHEN e.inner_node > 0 AND numbers[e.inner_node] = 0 THEN node_id[e.inner_node] ELSE e.source END
      FROM unnest(e_node, e_place, e_source, e_inner, e_rule) WITH ORDINALITY e (node, place, source, inner_node,
        rule, o)
      LEFT JOIN LATERAL (SELECT j.seq FROM "headway".job j WHERE e.inner_node IS NULL AND j.job_id = e.source
                            AND j.namespace_id = ns OFFSET 0) j ON true
      LEFT JOIN LATERAL (SELECT b.seq FROM "headway".batch b WHERE e.inner_node IS NULL AND b.batch_id = e.source
                            AND b.namespace_id = ns OFFSET 0) b ON true
     WHERE numbers[e.node] > 0 ORDER BY e.o
        ON CONFLICT DO NOTHING;
    INSERT INTO "headway".dependant (seq, pending, due_at, back)
    SELECT numbers[w.node],
           (SELECT count(*) FROM "headway".edge e WHERE e.dependant_seq = numbers[w.node]),
           greatest(coalesce(w.due, 0), now_at + coalesce(w.delay, 0)), submit_graph_7.back
      FROM unnest(w_node, w_due, w_delay) w (node, due, delay) WHERE numbers[w.node] > 0;
    GET DIAGNOSTICS fresh_held = ROW_COUNT;
    PERFORM "headway".count_up_7(ns, now_at, ARRAY['held'], ARRAY[fresh_held]::bigint[], own);
    -- Sources that existed before.
    SELECT array_agg(DISTINCT e.dependant_seq), array_agg(DISTINCT e.source_seq) INTO dependants, existing
      FROM unnest(e_node, e_place, e_inner) x (node, place, inner_node)
     CROSS JOIN LATERAL (SELECT e.source_seq, e.dependant_seq FROM "headway".edge e
                          WHERE e.dependant_seq = numbers[x.node] AND e.place = x.place OFFSET 0) e
     WHERE numbers[x.node] > 0 AND (x.inner_node IS NULL OR x.inner_node > 0 AND numbers[x.inner_node] = 0);
  END IF;
  IF existing IS NULL AND NOT (created AND NOT b_open AND fresh = 0) THEN
    RETURN;
  END IF;
  IF NOT own AND NOT locked THEN
    locked := pg_try_advisory_xact_lock_shared(-940774432, ns) AND pg_try_advisory_xact_lock(797684821, ns);
    alone := false;
  END IF;
  IF NOT locked THEN
    INSERT INTO "headway".unsettled (namespace_id, source_seq, members, reached)
    SELECT ns, x.source, false, dependants[1] - 1 FROM unnest(existing) x (source)
    UNION ALL SELECT ns, target.seq, false, 0 WHERE created AND NOT b_open AND fresh = 0;
    PERFORM pg_notify(n.channel, '*') FROM "headway".namespace n WHERE n.namespace_id = ns;
    RETURN;
  END IF;
  missed := "headway".mark_awaited_7(ns, existing);
  INSERT INTO "headway".unsettled (namespace_id, source_seq, members, reached)
  SELECT ns, x.source, false, dependants[1] - 1 FROM unnest(missed) x (source);
  SELECT * INTO moved FROM "headway".settle_7(
    ns, now_at, alone, false, 100, NULL, NULL, NULL, NULL, NULL, dependants,
    CASE WHEN created THEN ARRAY[target.seq] END, CASE WHEN created THEN ARRAY['live'] END,
    CASE WHEN created THEN ARRAY[0] END, s_task, s_tenant, s_step);
  IF moved.eligible IS NOT NULL THEN
    PERFORM "headway".wake_7(ns, now_at, moved.eligible, NULL);
  END IF;
  IF moved.remains THEN
    PERFORM "headway".wake_any_7(ns, now_at);
  END IF;
  PERFORM "headway".count_up_7(ns, now_at, moved.kinds, moved.counts, false);
  PERFORM "headway".notify_jobs_7(ns, moved.told);
END $$;
CREATE FUNCTION headway.submit_many_7(ns integer, at bigint, classes integer[], g_class integer, g_task text, g_timeout bigint, g_most integer, ids text, payloads bytea[], groups integer[], tasks text[], timeouts bigint[], retries integer[], retry text[], traces text[], limits text[]) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
  now_at bigint := "headway".now_ms_7(at);
  all_ids text[] := string_to_array(ids, E'\n');
  numbers bigint[];
  awaited boolean;
  watched boolean;
BEGIN
  IF EXISTS (SELECT FROM "headway".class c WHERE c.class_id = ANY (classes) AND c.fair)
     OR EXISTS (SELECT FROM "headway".job j WHERE j.job_id = ANY (all_ids) AND j.namespace_id = ns) THEN
    RETURN false;
  END IF;
  numbers := ARRAY(SELECT nextval('"headway".sequence') FROM generate_series(1, cardinality(payloads)));
  INSERT INTO "headway".job (seq, namespace_id, class_id, order_key, submitted_at, timeout_ms, max_retries, job_id, task,
                            trace_id, retry, limits, payload)
  SELECT x.n, ns, coalesce(x.class, g_class), x.n, now_at, coalesce(x.timeout, g_timeout), coalesce(x.most, g_most),
         x.id, coalesce(x.task, g_task), x.trace, x.retry, x.limits, x.payload
    FROM unnest(numbers, all_ids, payloads, groups, tasks, timeouts, retries, retry, traces, limits)
         x (n, id, payload, class, task, timeout, most, retry, trace, limits);
  INSERT INTO "headway".ready (order_key, seq, eligible_at, class_id)
  SELECT x.n, x.n, now_at, coalesce(x.class, g_class) FROM unnest(numbers, groups) x (n, class);
  INSERT INTO "headway".tally AS t (namespace_id, minute, shard, what, count)
  VALUES (ns, now_at / 60000, pg_backend_pid() % 32 + 32 * (now_at / 10000 % 6), 'submitted', cardinality(payloads))
      ON CONFLICT (namespace_id, minute, what, shard) DO UPDATE SET count = t.count + excluded.count;
  PERFORM pg_advisory_xact_lock_shared(-609228881, ns);
  SELECT EXISTS (SELECT FROM "headway".worker w WHERE w.namespace_id = ns AND w.waiting IS NOT NULL),
         EXISTS (SELECT FROM "headway".watcher w WHERE w.namespace_id = ns) INTO awaited, watched;
  IF awaited THEN
    PERFORM "headway".wake_7(ns, now_at, coalesce(groups, array_fill(g_class, ARRAY[cardinality(payloads)])),
                                    NULL);
  END IF;
  IF watched THEN
    PERFORM "headway".notify_jobs_7(ns, all_ids);
  END IF;
  RETURN true;
END $$;
CREATE FUNCTION headway.submit_one_7(ns integer, at bigint, class integer, id text, task text, payload bytea, timeout bigint, most integer, retry text, trace text, limits text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
  now_at bigint := "headway".now_ms_7(at);
  held text := pg_advisory_xact_lock_shared(-609228881, ns);
  number bigint;
  unfit boolean;
  awaited boolean;
  watched boolean;
BEGIN
  SELECT c.fair OR EXISTS (SELECT FROM "headway".job j WHERE j.job_id = id AND j.namespace_id = ns),
         EXISTS (SELECT FROM "headway".worker w WHERE w.namespace_id = ns AND w.waiting IS NOT NULL),
         EXISTS (SELECT FROM "headway".watcher w WHERE w.namespace_id = ns)
    INTO unfit, awaited, watched FROM "headway".class c WHERE c.class_id = class;
  IF unfit IS NOT FALSE THEN
    RETURN false;
  END IF;
  number := nextval('"headway".sequence');
  INSERT INTO "headway".job (seq, namespace_id, class_id, order_key, submitted_at, timeout_ms, max_retries, job_id, task,
                            trace_id, retry, limits, payload)
  VALUES (number, ns, class, number, now_at, timeout, most, id, task, trace, retry, limits, payload);
  INSERT INTO "headway".ready (order_key, seq, eligible_at, class_id) VALUES (number, number, now_at, class);
  UPDATE "headway".tally t SET count = t.count + 1
   WHERE t.namespace_id = ns AND t.minute = now_at / 60000 AND t.what = 'submitted'
     AND t.shard = pg_backend_pid() % 32 + 32 * (now_at / 10000 % 6);
  IF NOT FOUND THEN
    PERFORM "headway".count_up_7(ns, now_at, ARRAY['submitted'], ARRAY[1]::bigint[], false);
  END IF;
  IF awaited THEN
    PERFORM "headway".wake_7(ns, now_at, ARRAY[class], NULL);
  END IF;
  IF watched THEN
    PERFORM "headway".notify_jobs_7(ns, ARRAY[id]);
  END IF;
  RETURN true;
END $$;
CREATE FUNCTION headway.submit_within_7(ns integer, at bigint, class integer, id text, task text, payload bytea, timeout bigint, most integer, retry text, trace text, limits text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
  now_at bigint := "headway".now_ms_7(at);
  number bigint;
  unfit boolean;
  watched boolean;
BEGIN
  SELECT c.fair OR EXISTS (SELECT FROM "headway".job j WHERE j.job_id = id AND j.namespace_id = ns),
         EXISTS (SELECT FROM "headway".watcher w WHERE w.namespace_id = ns)
    INTO unfit, watched FROM "headway".class c WHERE c.class_id = class;
  IF unfit IS NOT FALSE THEN
    RETURN false;
  END IF;
  number := nextval('"headway".sequence');
  INSERT INTO "headway".job (seq, namespace_id, class_id, order_key, submitted_at, timeout_ms, max_retries, job_id, task,
                            trace_id, retry, limits, payload)
  VALUES (number, ns, class, number, now_at, timeout, most, id, task, trace, retry, limits, payload);
  INSERT INTO "headway".ready (order_key, seq, eligible_at, class_id) VALUES (number, number, now_at, class);
  UPDATE "headway".tally t SET count = t.count + 1
   WHERE t.namespace_id = ns AND t.minute = now_at / 60000 AND t.what = 'submitted'
     AND t.shard = 1000 + pg_backend_pid();
  IF NOT FOUND THEN
    PERFORM "headway".count_up_7(ns, now_at, ARRAY['submitted'], ARRAY[1]::bigint[], true);
  END IF;
  PERFORM pg_notify(n.channel, '*') FROM "headway".namespace n WHERE n.namespace_id = ns;
  IF watched THEN
    PERFORM "headway".notify_jobs_7(ns, ARRAY[id]);
  END IF;
  RETURN true;
END $$;
CREATE FUNCTION headway.verdict_7(rule text, status text, failing boolean) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT CASE WHEN rule = 'on_failure' THEN CASE WHEN failing THEN 'satisfy' WHEN status = 'live' THEN 'wait'
                                                 ELSE 'cancel' END
              WHEN status = 'live' THEN 'wait'
              WHEN status = 'completed' OR rule IN ('run', 'on_done') THEN 'satisfy'
              WHEN rule = 'cancel' THEN 'cancel' ELSE 'wait' END
$$;
CREATE FUNCTION headway.wake_7(ns integer, at bigint, classes integer[], but text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  class int;
  chosen text;
  woken text[] := '{}';
  served_out int[] := '{}';
BEGIN
  -- A worker that begins to wait now does so after this is committed, and sees it; one that waits already is seen here.
  PERFORM pg_advisory_xact_lock_shared(-609228881, ns);
  IF NOT EXISTS (SELECT FROM "headway".worker w WHERE w.namespace_id = ns AND w.waiting IS NOT NULL) THEN
    RETURN;
  END IF;
  FOREACH class IN ARRAY coalesce(classes, '{}') LOOP
    CONTINUE WHEN class = ANY (served_out);
    SELECT w.worker_id INTO chosen FROM "headway".worker w JOIN "headway".class k ON k.class_id = class
     WHERE w.namespace_id = ns AND w.waiting IS NOT NULL AND w.state = 'active' AND w.lease_ends_at > at
       AND w.worker_id IS DISTINCT FROM but AND w.worker_id <> ALL (woken)
       AND (w.wait_lanes IS NULL OR k.lane = ANY (w.wait_lanes)) AND (k.needs <@ w.offers
            OR 'task:*' = ANY (w.offers) AND ARRAY(SELECT n FROM unnest(k.needs) n
                                                    WHERE n NOT LIKE 'task:%') <@ w.offers)
     ORDER BY w.waiting, w.worker_id LIMIT 1;
    IF chosen IS NULL THEN
      served_out := served_out || class;
    ELSE
      woken := woken || chosen;
      PERFORM "headway".notify_7(ns, 'w', chosen);
    END IF;
  END LOOP;
  -- A row that its worker or its keeper has locked just now is left as it is: one more wake-up does no harm.
  UPDATE "headway".worker SET waiting = NULL WHERE worker_id IN
    (SELECT w.worker_id FROM "headway".worker w WHERE w.worker_id = ANY (woken) FOR NO KEY UPDATE SKIP LOCKED);
END $$;
CREATE FUNCTION headway.wake_any_7(ns integer, at bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  chosen text;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(-609228881, ns);
  SELECT w.worker_id INTO chosen FROM "headway".worker w
   WHERE w.namespace_id = ns AND w.waiting IS NOT NULL AND w.state = 'active' AND w.lease_ends_at > at
   ORDER BY w.waiting, w.worker_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE "headway".worker w SET waiting = NULL WHERE w.worker_id = chosen;
    PERFORM "headway".notify_7(ns, 'w', chosen);
  END IF;
END $$;
CREATE TABLE headway.attempt (
    seq bigint NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    epoch integer NOT NULL,
    number integer NOT NULL,
    worker_id text,
    reason text NOT NULL,
    error text
);
CREATE TABLE headway.batch (
    seq bigint NOT NULL,
    namespace_id integer NOT NULL,
    batch_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    key text COLLATE pg_catalog."C",
    tenant text COLLATE pg_catalog."C",
    parent_seq bigint,
    open boolean NOT NULL,
    total integer DEFAULT 0 NOT NULL,
    live integer DEFAULT 0 NOT NULL,
    children integer DEFAULT 0 NOT NULL,
    held integer DEFAULT 0 NOT NULL,
    completed integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    cancelled integer DEFAULT 0 NOT NULL,
    failing boolean DEFAULT false NOT NULL,
    round integer DEFAULT 1 NOT NULL,
    created_at bigint NOT NULL,
    cancel_at bigint,
    finished_at bigint
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE headway.class (
    class_id integer NOT NULL,
    namespace_id integer NOT NULL,
    lane text NOT NULL COLLATE pg_catalog."C",
    rung text NOT NULL COLLATE pg_catalog."C",
    needs text[] NOT NULL COLLATE pg_catalog."C",
    persist boolean NOT NULL,
    fair boolean DEFAULT false NOT NULL,
    clock bigint DEFAULT 0 NOT NULL,
    rewound integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE headway.class ALTER COLUMN class_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headway.class_class_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE SEQUENCE headway.clock_ahead
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;
CREATE SEQUENCE headway.clock_reached
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    NO MAXVALUE
    CACHE 1;
CREATE TABLE headway.delayed (
    due_at bigint NOT NULL,
    seq bigint NOT NULL,
    timeout_ms bigint,
    namespace_id integer NOT NULL,
    class_id integer NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    token bytea,
    error text,
    reason text
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0');
CREATE TABLE headway.dependant (
    seq bigint NOT NULL,
    pending integer NOT NULL,
    due_at bigint NOT NULL,
    back boolean NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE headway.document (
    namespace_id integer NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE headway.edge (
    source_seq bigint NOT NULL,
    dependant_seq bigint NOT NULL,
    place integer NOT NULL,
    satisfied boolean NOT NULL,
    again boolean DEFAULT false NOT NULL,
    rule text NOT NULL COLLATE pg_catalog."C",
    source text NOT NULL COLLATE pg_catalog."C"
)
WITH (fillfactor='50');
CREATE TABLE headway.expiry (
    namespace_id integer NOT NULL,
    expires_at bigint NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE headway.format (
    name text NOT NULL,
    value integer NOT NULL
);
CREATE TABLE headway.idempotency (
    namespace_id integer NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    idempotency_key text NOT NULL COLLATE pg_catalog."C",
    until_at bigint NOT NULL,
    job_id text NOT NULL,
    digest bytea NOT NULL
);
CREATE TABLE headway.job (
    seq bigint NOT NULL,
    namespace_id integer NOT NULL,
    class_id integer NOT NULL,
    order_key bigint,
    due_at bigint,
    submitted_at bigint NOT NULL,
    expires_at bigint,
    timeout_ms bigint NOT NULL,
    max_retries integer NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    park text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    task text NOT NULL COLLATE pg_catalog."C",
    tenant text COLLATE pg_catalog."C",
    trace_id text,
    retry text,
    idempotency_key text COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    limits text,
    payload bytea NOT NULL,
    batch_seq bigint,
    awaited boolean
)
WITH (fillfactor='95');
CREATE TABLE headway.lease (
    seq bigint NOT NULL,
    order_key bigint NOT NULL,
    started_at bigint NOT NULL,
    eligible_at bigint NOT NULL,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    class_id integer NOT NULL,
    epoch integer NOT NULL,
    attempts integer NOT NULL,
    crashes integer NOT NULL,
    token bytea NOT NULL,
    worker_id text NOT NULL COLLATE pg_catalog."C",
    tenant text COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    note text,
    assigned text,
    parked_for text,
    limit_keys text[] COLLATE pg_catalog."C",
    batch_seq bigint,
    awaited boolean
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='50000');
CREATE TABLE headway.limit_usage (
    namespace_id integer NOT NULL,
    limit_key text NOT NULL COLLATE pg_catalog."C",
    count integer NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE headway.namespace (
    namespace_id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL,
    rules bigint DEFAULT 0 NOT NULL,
    witnessed_at bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='20');
ALTER TABLE headway.namespace ALTER COLUMN namespace_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headway.namespace_namespace_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE headway.outcome (
    seq bigint NOT NULL,
    finished_at bigint NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer NOT NULL,
    attempts integer NOT NULL,
    crashes integer NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
)
PARTITION BY LIST (state);
CREATE TABLE headway.outcome_completed (
    seq bigint CONSTRAINT outcome_seq_not_null NOT NULL,
    finished_at bigint CONSTRAINT outcome_finished_at_not_null NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer CONSTRAINT outcome_epoch_not_null NOT NULL,
    attempts integer CONSTRAINT outcome_attempts_not_null NOT NULL,
    crashes integer CONSTRAINT outcome_crashes_not_null NOT NULL,
    state text CONSTRAINT outcome_state_not_null NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
)
PARTITION BY RANGE (finished_at);
CREATE TABLE headway.outcome_20261118 (
    seq bigint CONSTRAINT outcome_seq_not_null NOT NULL,
    finished_at bigint CONSTRAINT outcome_finished_at_not_null NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer CONSTRAINT outcome_epoch_not_null NOT NULL,
    attempts integer CONSTRAINT outcome_attempts_not_null NOT NULL,
    crashes integer CONSTRAINT outcome_crashes_not_null NOT NULL,
    state text CONSTRAINT outcome_state_not_null NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
);
CREATE TABLE headway.outcome_20261119 (
    seq bigint CONSTRAINT outcome_seq_not_null NOT NULL,
    finished_at bigint CONSTRAINT outcome_finished_at_not_null NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer CONSTRAINT outcome_epoch_not_null NOT NULL,
    attempts integer CONSTRAINT outcome_attempts_not_null NOT NULL,
    crashes integer CONSTRAINT outcome_crashes_not_null NOT NULL,
    state text CONSTRAINT outcome_state_not_null NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
);
CREATE TABLE headway.outcome_20261120 (
    seq bigint CONSTRAINT outcome_seq_not_null NOT NULL,
    finished_at bigint CONSTRAINT outcome_finished_at_not_null NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer CONSTRAINT outcome_epoch_not_null NOT NULL,
    attempts integer CONSTRAINT outcome_attempts_not_null NOT NULL,
    crashes integer CONSTRAINT outcome_crashes_not_null NOT NULL,
    state text CONSTRAINT outcome_state_not_null NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
);
CREATE TABLE headway.outcome_any_day (
    seq bigint CONSTRAINT outcome_seq_not_null NOT NULL,
    finished_at bigint CONSTRAINT outcome_finished_at_not_null NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer CONSTRAINT outcome_epoch_not_null NOT NULL,
    attempts integer CONSTRAINT outcome_attempts_not_null NOT NULL,
    crashes integer CONSTRAINT outcome_crashes_not_null NOT NULL,
    state text CONSTRAINT outcome_state_not_null NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
);
CREATE TABLE headway.outcome_bad (
    seq bigint CONSTRAINT outcome_seq_not_null NOT NULL,
    finished_at bigint CONSTRAINT outcome_finished_at_not_null NOT NULL,
    started_at bigint,
    eligible_at bigint,
    timeout_ms bigint,
    cancel_at bigint,
    parked_ms bigint,
    progress double precision,
    epoch integer CONSTRAINT outcome_epoch_not_null NOT NULL,
    attempts integer CONSTRAINT outcome_attempts_not_null NOT NULL,
    crashes integer CONSTRAINT outcome_crashes_not_null NOT NULL,
    state text CONSTRAINT outcome_state_not_null NOT NULL COLLATE pg_catalog."C",
    worker_id text COLLATE pg_catalog."C",
    token bytea,
    note text,
    reason text,
    error text,
    result_error text,
    result bytea,
    parked_for text
);
CREATE TABLE headway.park (
    namespace_id integer NOT NULL,
    park text NOT NULL COLLATE pg_catalog."C",
    class_id integer NOT NULL,
    open boolean NOT NULL,
    open_at bigint,
    head_key bigint NOT NULL,
    head_seq bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE headway.rate (
    namespace_id integer NOT NULL,
    rate_key text NOT NULL COLLATE pg_catalog."C",
    reached_us bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE headway.ready (
    order_key bigint NOT NULL,
    seq bigint NOT NULL,
    eligible_at bigint NOT NULL,
    expires_at bigint,
    timeout_ms bigint,
    parked_at bigint,
    class_id integer NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    park text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    tenant text COLLATE pg_catalog."C",
    unique_key text COLLATE pg_catalog."C",
    token bytea,
    error text,
    reason text,
    batch_seq bigint,
    awaited boolean
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', autovacuum_vacuum_insert_scale_factor='0.5', autovacuum_analyze_scale_factor='1');
CREATE SEQUENCE headway.sequence
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE headway.step (
    seq bigint NOT NULL,
    number integer NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    value bytea NOT NULL,
    bytes bigint NOT NULL
);
CREATE TABLE headway.stretch (
    class_id integer NOT NULL,
    from_at bigint NOT NULL,
    until_at bigint NOT NULL,
    reason text NOT NULL
);
CREATE TABLE headway.tally (
    namespace_id integer NOT NULL,
    minute bigint NOT NULL,
    shard integer NOT NULL,
    what text NOT NULL COLLATE pg_catalog."C",
    count bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE headway.transient (
    seq bigint NOT NULL,
    timeout_ms bigint NOT NULL,
    class_id integer NOT NULL,
    job_id text NOT NULL,
    task text NOT NULL COLLATE pg_catalog."C",
    tenant text,
    trace_id text,
    payload bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0');
CREATE SEQUENCE headway.turn
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE headway.unique_key (
    namespace_id integer NOT NULL,
    unique_key text NOT NULL COLLATE pg_catalog."C",
    job_id text NOT NULL
);
CREATE TABLE headway.unsettled (
    place bigint NOT NULL,
    namespace_id integer NOT NULL,
    source_seq bigint NOT NULL,
    members boolean NOT NULL,
    reached bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE headway.unsettled ALTER COLUMN place ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headway.unsettled_place_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE headway.watcher (
    namespace_id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    until_at bigint NOT NULL
);
CREATE TABLE headway.worker (
    worker_id text NOT NULL COLLATE pg_catalog."C",
    namespace_id integer NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    slots integer NOT NULL,
    reserved integer NOT NULL,
    offers text[] NOT NULL COLLATE pg_catalog."C",
    version text NOT NULL,
    protocol integer NOT NULL,
    state text NOT NULL,
    started_at bigint NOT NULL,
    heartbeat_at bigint NOT NULL,
    lease_ends_at bigint NOT NULL,
    running integer DEFAULT 0 NOT NULL,
    claim_id bytea,
    waiting bigint,
    wait_lanes text[] COLLATE pg_catalog."C"
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY headway.outcome_completed ATTACH PARTITION headway.outcome_20261118 FOR VALUES FROM ('1794960000000') TO ('1795046400000');
ALTER TABLE ONLY headway.outcome_completed ATTACH PARTITION headway.outcome_20261119 FOR VALUES FROM ('1795046400000') TO ('1795132800000');
ALTER TABLE ONLY headway.outcome_completed ATTACH PARTITION headway.outcome_20261120 FOR VALUES FROM ('1795132800000') TO ('1795219200000');
ALTER TABLE ONLY headway.outcome_completed ATTACH PARTITION headway.outcome_any_day DEFAULT;
ALTER TABLE ONLY headway.outcome ATTACH PARTITION headway.outcome_bad DEFAULT;
ALTER TABLE ONLY headway.outcome ATTACH PARTITION headway.outcome_completed FOR VALUES IN ('completed');
INSERT INTO headway.attempt VALUES (2, 1735689600000, 1735689600000, 1, 1, 'testbed:8d57ce', 'max_retries_exceeded', '{"type":"ValueError","message":"no stock","traceback":"Traceback (most recent call last):\n  File \"/srv/_shop/tests/upgrades/shop.py\", line 29, in refuse\n    raise ValueError(why)\nValueError: no stock\n","retriable":true}');
INSERT INTO headway.batch VALUES (9, 1, 'batch-01a1ef90-df62-7276-bffd-18b9bd99158a', 'shop.double', NULL, NULL, NULL, false, 2, 2, 0, 1, 0, 0, 0, false, 1, 1735689660000, NULL, NULL);
INSERT INTO headway.batch VALUES (12, 1, 'batch-01a1ef90-df6d-7229-9375-7e24be1cf61d', 'march', NULL, NULL, NULL, false, 3, 3, 0, 0, 0, 0, 0, false, 1, 1735689660000, NULL, NULL);
INSERT INTO headway.class OVERRIDING SYSTEM VALUE VALUES (2, 1, 'low', '', '{}', true, false, 0, 0);
INSERT INTO headway.class OVERRIDING SYSTEM VALUE VALUES (1, 1, 'medium', '', '{}', true, true, 3, 0);
INSERT INTO headway.class OVERRIDING SYSTEM VALUE VALUES (3, 1, 'high', '', '{}', true, false, 0, 0);
INSERT INTO headway.delayed VALUES (1735689960000, 5, NULL, 1, 1, 0, 0, 0, NULL, NULL, NULL);
INSERT INTO headway.delayed VALUES (253402300800000, 11, NULL, 1, 2, 0, 0, 0, NULL, NULL, NULL);
INSERT INTO headway.delayed VALUES (253402300800000, 16, NULL, 1, 3, 0, 0, 0, NULL, NULL, NULL);
INSERT INTO headway.dependant VALUES (11, 1, 1735689660000, false);
INSERT INTO headway.dependant VALUES (16, 1, 1735689660000, false);
INSERT INTO headway.document VALUES (1, 'task', 'shop.add', 1, '\x7b226e616d65223a2273686f702e616464222c226c616e65223a226d656469756d222c226578656375746f72223a22746872656164222c226e65656473223a5b5d2c22666169725f6279223a6e756c6c2c2270657273697374223a747275652c226d61785f72657472696573223a6e756c6c2c2274696d656f75745f6d73223a6e756c6c2c227265747279223a6e756c6c2c226475726174696f6e223a6e756c6c2c226c696d697473223a5b5d2c22756e69717565223a66616c73652c22756e697175655f6279223a6e756c6c2c22726564616374223a5b5d2c22706172616d6574657273223a7b2270726f70657274696573223a7b2261223a7b2274797065223a22696e7465676572227d2c2262223a7b2274797065223a22696e7465676572227d7d2c227265717569726564223a5b2261222c2262225d7d2c22646f63223a22227d');
INSERT INTO headway.document VALUES (1, 'task', 'shop.double', 1, '\x7b226e616d65223a2273686f702e646f75626c65222c226c616e65223a226c6f77222c226578656375746f72223a22746872656164222c226e65656473223a5b5d2c22666169725f6279223a6e756c6c2c2270657273697374223a747275652c226d61785f72657472696573223a6e756c6c2c2274696d656f75745f6d73223a6e756c6c2c227265747279223a6e756c6c2c226475726174696f6e223a6e756c6c2c226c696d697473223a5b5d2c22756e69717565223a66616c73652c22756e697175655f6279223a6e756c6c2c22726564616374223a5b5d2c22706172616d6574657273223a7b2270726f70657274696573223a7b2276616c7565223a7b2274797065223a22696e7465676572227d7d2c227265717569726564223a5b2276616c7565225d7d2c22646f63223a22227d');
INSERT INTO headway.document VALUES (1, 'task', 'shop.total', 1, '\x7b226e616d65223a2273686f702e746f74616c222c226c616e65223a2268696768222c226578656375746f72223a22746872656164222c226e65656473223a5b5d2c22666169725f6279223a6e756c6c2c2270657273697374223a747275652c226d61785f72657472696573223a6e756c6c2c2274696d656f75745f6d73223a6e756c6c2c227265747279223a6e756c6c2c226475726174696f6e223a6e756c6c2c226c696d697473223a5b5d2c22756e69717565223a66616c73652c22756e697175655f6279223a6e756c6c2c22726564616374223a5b5d2c22706172616d6574657273223a7b2270726f70657274696573223a7b227061727473223a7b227469746c65223a22526573756c7473227d2c226c6162656c223a7b2274797065223a22737472696e67227d7d2c227265717569726564223a5b226c6162656c222c227061727473225d7d2c22646f63223a22227d');
INSERT INTO headway.document VALUES (1, 'task', 'shop.refuse', 1, '\x7b226e616d65223a2273686f702e726566757365222c226c616e65223a226d656469756d222c226578656375746f72223a22746872656164222c226e65656473223a5b5d2c22666169725f6279223a6e756c6c2c2270657273697374223a747275652c226d61785f72657472696573223a302c2274696d656f75745f6d73223a6e756c6c2c227265747279223a6e756c6c2c226475726174696f6e223a6e756c6c2c226c696d697473223a5b5d2c22756e69717565223a66616c73652c22756e697175655f6279223a6e756c6c2c22726564616374223a5b5d2c22706172616d6574657273223a7b2270726f70657274696573223a7b22776879223a7b2274797065223a22737472696e67227d7d2c227265717569726564223a5b22776879225d7d2c22646f63223a22227d');
INSERT INTO headway.document VALUES (1, 'task', 'shop.charge', 1, '\x7b226e616d65223a2273686f702e636861726765222c226c616e65223a226d656469756d222c226578656375746f72223a22746872656164222c226e65656473223a5b5d2c22666169725f6279223a226163636f756e74222c2270657273697374223a747275652c226d61785f72657472696573223a6e756c6c2c2274696d656f75745f6d73223a6e756c6c2c227265747279223a6e756c6c2c226475726174696f6e223a6e756c6c2c226c696d697473223a5b7b22636f6e63757272656e6379223a312c22636f756e74223a6e756c6c2c22706572696f645f6d73223a302c226275727374223a312c226279223a226163636f756e74222c227461736b73223a5b2273686f702e636861726765225d2c2273636f7065223a2274656e616e74227d5d2c22756e69717565223a66616c73652c22756e697175655f6279223a6e756c6c2c22726564616374223a5b5d2c22706172616d6574657273223a7b2270726f70657274696573223a7b226163636f756e74223a7b2274797065223a22737472696e67227d2c2263656e7473223a7b2274797065223a22696e7465676572227d7d2c227265717569726564223a5b226163636f756e74222c2263656e7473225d7d2c22646f63223a22227d');
INSERT INTO headway.document VALUES (1, 'task', 'shop.pack', 1, '\x7b226e616d65223a2273686f702e7061636b222c226c616e65223a226d656469756d222c226578656375746f72223a22746872656164222c226e65656473223a5b5d2c22666169725f6279223a6e756c6c2c2270657273697374223a747275652c226d61785f72657472696573223a6e756c6c2c2274696d656f75745f6d73223a6e756c6c2c227265747279223a6e756c6c2c226475726174696f6e223a6e756c6c2c226c696d697473223a5b5d2c22756e69717565223a66616c73652c22756e697175655f6279223a6e756c6c2c22726564616374223a5b5d2c22706172616d6574657273223a7b2270726f70657274696573223a7b226f72646572223a7b2274797065223a22696e7465676572227d7d2c227265717569726564223a5b226f72646572225d7d2c22646f63223a2252657475726e2074686520776f726b65722074686174207061636b656420746865206f726465722e20546573747320617070656e64206c696e657320746f20612066696c6520746f20636f756e742072756e732e227d');
INSERT INTO headway.document VALUES (1, 'rules', 'declared.shop.charge', 1, '\x7b226c696d697473223a7b2273686f702e6368617267653a636f6e63757272656e63793a6163636f756e74223a7b22636f6e63757272656e6379223a312c22636f756e74223a6e756c6c2c22706572696f645f6d73223a302c226275727374223a312c226279223a226163636f756e74222c227461736b73223a5b2273686f702e636861726765225d2c2273636f7065223a2274656e616e74227d7d2c2272756e6773223a5b5d2c22706f6f6c5f72657365727665223a6e756c6c2c2264656661756c745f776569676874223a312c2277656967687473223a7b7d2c22636f7374735f7573223a7b7d2c22706175736564223a7b2265766572797468696e67223a66616c73652c226c616e6573223a5b5d2c227461736b73223a5b5d2c2274656e616e7473223a5b5d7d7d');
INSERT INTO headway.edge VALUES (10, 11, 0, false, false, 'cancel', '01a1ef90-df62-770e-a307-7ad43003191d');
INSERT INTO headway.edge VALUES (12, 16, 0, false, false, 'cancel', 'batch-01a1ef90-df6d-7229-9375-7e24be1cf61d');
INSERT INTO headway.format VALUES ('schema', 4);
INSERT INTO headway.format VALUES ('functions', 7);
INSERT INTO headway.format VALUES ('format', 1);
INSERT INTO headway.format VALUES ('oldest_reader', 1);
INSERT INTO headway.format VALUES ('oldest_writer', 1);
INSERT INTO headway.idempotency VALUES (1, '', 'order-7', 1735776060000, '01a1ef90-df53-7df7-abd5-3e138b1df852', '\xfa83a31ff573777ac122175886ade9a7');
INSERT INTO headway.job VALUES (1, 1, 1, 1, NULL, 1735689600000, NULL, 600000, 3, '01a1ef90-de79-70f4-b7f4-dc7287523777', '', 'shop.add', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2261223a322c2262223a337d', NULL, NULL);
INSERT INTO headway.job VALUES (2, 1, 1, 2, NULL, 1735689600000, NULL, 600000, 0, '01a1ef90-de9a-7cf4-acad-802317dbced2', '', 'shop.refuse', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b22776879223a226e6f2073746f636b227d', NULL, NULL);
INSERT INTO headway.job VALUES (3, 1, 1, 3, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df4c-7b44-9b1b-aaff15a2f796', '', 'shop.add', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2261223a312c2262223a317d', NULL, NULL);
INSERT INTO headway.job VALUES (4, 1, 2, 4, NULL, 1735689660000, NULL, 900000, 2, '01a1ef90-df4d-72b0-ac5f-4d4cbcc67a4f', '', 'shop.double', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2276616c7565223a32317d', NULL, NULL);
INSERT INTO headway.job VALUES (5, 1, 1, NULL, 1735689960000, 1735689660000, NULL, 600000, 3, '01a1ef90-df53-7df7-abd5-3e138b1df852', '', 'shop.add', NULL, NULL, NULL, 'order-7', NULL, NULL, '\x017b2261223a372c2262223a307d', NULL, NULL);
INSERT INTO headway.job VALUES (6, 1, 1, 3, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df5a-731c-a73c-4275303fbb8e', '', 'shop.charge', 'acme', NULL, NULL, NULL, NULL, '["shop.charge:concurrency:account=acme=acme"]', '\x017b226163636f756e74223a2261636d65222c2263656e7473223a3130307d', NULL, NULL);
INSERT INTO headway.job VALUES (7, 1, 1, 1000003, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df5c-7b1c-93b1-3162cbe6619c', '', 'shop.charge', 'acme', NULL, NULL, NULL, NULL, '["shop.charge:concurrency:account=acme=acme"]', '\x017b226163636f756e74223a2261636d65222c2263656e7473223a3130307d', NULL, NULL);
INSERT INTO headway.job VALUES (8, 1, 1, 3, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df5e-723a-8c86-5203d953ecaa', '', 'shop.charge', 'beta', NULL, NULL, NULL, NULL, '["shop.charge:concurrency:account=beta=beta"]', '\x017b226163636f756e74223a2262657461222c2263656e7473223a3130307d', NULL, NULL);
INSERT INTO headway.job VALUES (10, 1, 1, 1000003, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df62-770e-a307-7ad43003191d', '', 'shop.add', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2261223a31302c2262223a31317d', 9, true);
INSERT INTO headway.job VALUES (11, 1, 2, NULL, 253402300800000, 1735689660000, NULL, 900000, 2, '01a1ef90-df62-735a-a889-af2e4230269f', '', 'shop.double', NULL, NULL, NULL, NULL, NULL, NULL, '\x027b2276616c7565223a7b22246f7574223a307d7d', 9, NULL);
INSERT INTO headway.job VALUES (13, 1, 1, 2000003, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df72-7e03-9bc7-93f956438146', '', 'shop.add', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2261223a312c2262223a307d', 12, NULL);
INSERT INTO headway.job VALUES (14, 1, 1, 3000003, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df72-7a5e-b87e-7a54f92dd516', '', 'shop.add', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2261223a322c2262223a307d', 12, NULL);
INSERT INTO headway.job VALUES (15, 1, 1, 4000003, NULL, 1735689660000, NULL, 600000, 3, '01a1ef90-df72-7e06-9385-680327f375a2', '', 'shop.add', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b2261223a332c2262223a307d', 12, NULL);
INSERT INTO headway.job VALUES (16, 1, 3, NULL, 253402300800000, 1735689660000, NULL, 300000, 5, '01a1ef90-df76-7fd9-aaf3-a7ae04b93bfc', '', 'shop.total', NULL, NULL, NULL, NULL, NULL, NULL, '\x027b227061727473223a7b22246f7574223a307d2c226c6162656c223a226d61726368227d', NULL, NULL);
INSERT INTO headway.job VALUES (17, 1, 3, 17, NULL, 1735689660000, NULL, 300000, 5, '01a1ef90-df8d-73a4-ae7a-57b5971c2631', '', 'shop.pack', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b226f72646572223a317d', NULL, NULL);
INSERT INTO headway.job VALUES (18, 1, 3, 18, NULL, 1735689660000, NULL, 300000, 5, '01a1ef90-df8e-7b7f-bd2f-9047e4fe6272', '', 'shop.pack', NULL, NULL, NULL, NULL, NULL, NULL, '\x017b226f72646572223a327d', NULL, NULL);
INSERT INTO headway.lease VALUES (17, 17, 1735689660000, 1735689660000, NULL, NULL, NULL, NULL, 3, 1, 1, 0, '\x00000000000000000000000000000002', 'web-1:4711:a1b2c3', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.lease VALUES (18, 18, 1735689660000, 1735689660000, NULL, NULL, NULL, NULL, 3, 1, 1, 0, '\x00000000000000000000000000000002', 'web-1:4711:a1b2c3', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.namespace OVERRIDING SYSTEM VALUE VALUES (1, 'default', 'headway_c539804b95a1a388cc551b0f', 1, 0);
INSERT INTO headway.outcome_any_day VALUES (1, 1735689600000, 1735689600000, 1735689600000, 600000, NULL, NULL, NULL, 1, 1, 0, 'completed', 'testbed:8d57ce', '\x83a87757bf6c464853f61d8ce9077da8', NULL, NULL, NULL, NULL, '\x0135', NULL);
INSERT INTO headway.outcome_bad VALUES (2, 1735689600000, 1735689600000, 1735689600000, 600000, NULL, NULL, NULL, 1, 1, 0, 'dead_letter', 'testbed:8d57ce', '\x85145dd987bc7ec50f42b71dd89e4bef', NULL, 'max_retries_exceeded', '{"type":"ValueError","message":"no stock","traceback":"Traceback (most recent call last):\n  File \"/srv/_shop/tests/upgrades/shop.py\", line 29, in refuse\n    raise ValueError(why)\nValueError: no stock\n","retriable":true}', NULL, NULL, NULL);
INSERT INTO headway.ready VALUES (4, 4, 1735689660000, NULL, NULL, NULL, 2, 0, 0, 0, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.ready VALUES (3, 3, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', '', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.ready VALUES (3, 6, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', 'acme', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.ready VALUES (1000003, 7, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', 'acme', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.ready VALUES (3, 8, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', 'beta', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO headway.ready VALUES (1000003, 10, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', '', NULL, NULL, NULL, NULL, 9, true);
INSERT INTO headway.ready VALUES (2000003, 13, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', '', NULL, NULL, NULL, NULL, 12, NULL);
INSERT INTO headway.ready VALUES (3000003, 14, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', '', NULL, NULL, NULL, NULL, 12, NULL);
INSERT INTO headway.ready VALUES (4000003, 15, 1735689660000, NULL, NULL, NULL, 1, 0, 0, 0, '', '', NULL, NULL, NULL, NULL, 12, NULL);
INSERT INTO headway.tally VALUES (1, 28928160, 1, 'submitted', 2);
INSERT INTO headway.tally VALUES (1, 28928160, 1, 'completed', 1);
INSERT INTO headway.tally VALUES (1, 28928160, 1, 'claimed', 2);
INSERT INTO headway.tally VALUES (1, 28928160, 1, 'dead_letter', 1);
INSERT INTO headway.tally VALUES (1, 28928161, 1, 'held', 2);
INSERT INTO headway.tally VALUES (1, 28928161, 1, 'submitted', 14);
INSERT INTO headway.tally VALUES (1, 28928161, 1, 'claimed', 2);
INSERT INTO headway.worker VALUES ('testbed:8d57ce', 1, 'testbed', 8570, 1, 0, '{task:shop.add,task:shop.charge,task:shop.double,task:shop.pack,task:shop.refuse,task:shop.total}', '0.1.0', 1, 'dead', 1735689600000, 1735689600000, 33271689600000, 0, '\x85145dd987bc7ec50f42b71dd89e4bef', NULL, NULL);
INSERT INTO headway.worker VALUES ('web-1:4711:a1b2c3', 1, 'host', 1, 2, 0, '{task:shop.add,task:shop.double,task:shop.total,task:shop.refuse,task:shop.charge,task:shop.pack}', '1.0', 1, 'active', 1735689660000, 1735689660000, 1735689750000, 2, '\x00000000000000000000000000000002', NULL, NULL);
SELECT pg_catalog.setval('headway.class_class_id_seq', 3, true);
SELECT pg_catalog.setval('headway.clock_ahead', 0, false);
SELECT pg_catalog.setval('headway.clock_reached', 1735689660000, true);
SELECT pg_catalog.setval('headway.namespace_namespace_id_seq', 1, true);
SELECT pg_catalog.setval('headway.sequence', 18, true);
SELECT pg_catalog.setval('headway.turn', 1, true);
SELECT pg_catalog.setval('headway.unsettled_place_seq', 1, false);
ALTER TABLE ONLY headway.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (seq, epoch);
ALTER TABLE ONLY headway.batch
    ADD CONSTRAINT batch_batch_id_namespace_id_key UNIQUE (batch_id, namespace_id);
ALTER TABLE ONLY headway.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY headway.class
    ADD CONSTRAINT class_namespace_id_lane_rung_needs_persist_key UNIQUE (namespace_id, lane, rung, needs, persist);
ALTER TABLE ONLY headway.class
    ADD CONSTRAINT class_pkey PRIMARY KEY (class_id);
ALTER TABLE ONLY headway.delayed
    ADD CONSTRAINT delayed_pkey PRIMARY KEY (namespace_id, due_at, seq);
ALTER TABLE ONLY headway.dependant
    ADD CONSTRAINT dependant_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY headway.document
    ADD CONSTRAINT document_pkey PRIMARY KEY (namespace_id, kind, name);
ALTER TABLE ONLY headway.edge
    ADD CONSTRAINT edge_pkey PRIMARY KEY (source_seq, dependant_seq);
ALTER TABLE ONLY headway.expiry
    ADD CONSTRAINT expiry_pkey PRIMARY KEY (namespace_id, expires_at, seq);
ALTER TABLE ONLY headway.format
    ADD CONSTRAINT format_pkey PRIMARY KEY (name);
ALTER TABLE ONLY headway.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (namespace_id, tenant, idempotency_key);
ALTER TABLE ONLY headway.job
    ADD CONSTRAINT job_job_id_namespace_id_key UNIQUE (job_id, namespace_id);
ALTER TABLE ONLY headway.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY headway.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY headway.limit_usage
    ADD CONSTRAINT limit_usage_pkey PRIMARY KEY (namespace_id, limit_key);
ALTER TABLE ONLY headway.namespace
    ADD CONSTRAINT namespace_name_key UNIQUE (name);
ALTER TABLE ONLY headway.namespace
    ADD CONSTRAINT namespace_pkey PRIMARY KEY (namespace_id);
ALTER TABLE ONLY headway.park
    ADD CONSTRAINT park_pkey PRIMARY KEY (namespace_id, park, class_id);
ALTER TABLE ONLY headway.rate
    ADD CONSTRAINT rate_pkey PRIMARY KEY (namespace_id, rate_key);
ALTER TABLE ONLY headway.ready
    ADD CONSTRAINT ready_pkey PRIMARY KEY (class_id, park, order_key, seq);
ALTER TABLE ONLY headway.step
    ADD CONSTRAINT step_pkey PRIMARY KEY (seq, number);
ALTER TABLE ONLY headway.step
    ADD CONSTRAINT step_seq_key_key UNIQUE (seq, key);
ALTER TABLE ONLY headway.stretch
    ADD CONSTRAINT stretch_pkey PRIMARY KEY (class_id, from_at);
ALTER TABLE ONLY headway.tally
    ADD CONSTRAINT tally_pkey PRIMARY KEY (namespace_id, minute, what, shard);
ALTER TABLE ONLY headway.transient
    ADD CONSTRAINT transient_pkey PRIMARY KEY (class_id, seq);
ALTER TABLE ONLY headway.unique_key
    ADD CONSTRAINT unique_key_pkey PRIMARY KEY (namespace_id, unique_key);
ALTER TABLE ONLY headway.unsettled
    ADD CONSTRAINT unsettled_pkey PRIMARY KEY (namespace_id, place);
ALTER TABLE ONLY headway.watcher
    ADD CONSTRAINT watcher_pkey PRIMARY KEY (namespace_id, name);
ALTER TABLE ONLY headway.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (worker_id);
CREATE UNIQUE INDEX batch_key ON headway.batch USING btree (namespace_id, key, COALESCE(tenant, ''::text)) WHERE (key IS NOT NULL);
CREATE INDEX batch_parent ON headway.batch USING btree (parent_seq) WHERE (parent_seq IS NOT NULL);
CREATE INDEX edge_again ON headway.edge USING btree (dependant_seq) WHERE again;
CREATE INDEX edge_dependant ON headway.edge USING btree (dependant_seq, place);
CREATE INDEX idempotency_until ON headway.idempotency USING btree (until_at);
CREATE INDEX job_batch ON headway.job USING btree (batch_seq, seq) WHERE (batch_seq IS NOT NULL);
CREATE INDEX lease_batch ON headway.lease USING btree (batch_seq) WHERE (batch_seq IS NOT NULL);
CREATE INDEX lease_tenant ON headway.lease USING btree (class_id, tenant, order_key) WHERE (tenant IS NOT NULL);
CREATE INDEX outcome_seq ON ONLY headway.outcome USING btree (seq);
CREATE INDEX outcome_completed_seq_idx ON ONLY headway.outcome_completed USING btree (seq);
CREATE INDEX outcome_20261118_seq_idx ON headway.outcome_20261118 USING btree (seq);
CREATE INDEX outcome_20261119_seq_idx ON headway.outcome_20261119 USING btree (seq);
CREATE INDEX outcome_20261120_seq_idx ON headway.outcome_20261120 USING btree (seq);
CREATE INDEX outcome_any_day_seq_idx ON headway.outcome_any_day USING btree (seq);
CREATE INDEX outcome_bad_seq_idx ON headway.outcome_bad USING btree (seq);
CREATE INDEX outcome_bad_state ON headway.outcome_bad USING btree (state, finished_at);
CREATE INDEX park_open ON headway.park USING btree (class_id, head_key, head_seq) WHERE open;
CREATE INDEX park_open_at ON headway.park USING btree (namespace_id, open_at) WHERE (open_at IS NOT NULL);
CREATE INDEX ready_age ON headway.ready USING btree (class_id, eligible_at) WHERE ((tenant IS NOT NULL) AND (park = ''::text));
CREATE INDEX ready_tenant ON headway.ready USING btree (class_id, tenant, order_key) WHERE (tenant IS NOT NULL);
CREATE INDEX worker_waiting ON headway.worker USING btree (namespace_id, waiting) WHERE (waiting IS NOT NULL);
ALTER INDEX headway.outcome_completed_seq_idx ATTACH PARTITION headway.outcome_20261118_seq_idx;
ALTER INDEX headway.outcome_completed_seq_idx ATTACH PARTITION headway.outcome_20261119_seq_idx;
ALTER INDEX headway.outcome_completed_seq_idx ATTACH PARTITION headway.outcome_20261120_seq_idx;
ALTER INDEX headway.outcome_completed_seq_idx ATTACH PARTITION headway.outcome_any_day_seq_idx;
ALTER INDEX headway.outcome_seq ATTACH PARTITION headway.outcome_bad_seq_idx;
ALTER INDEX headway.outcome_seq ATTACH PARTITION headway.outcome_completed_seq_idx;
