-- claim: lease waiting jobs of one class to a worker, in order and within all limits.
-- gives   how many, and the leases in order; the highest order key taken from the line of the class, and of all; the
--         ids of jobs that had expired or whose batch is cancelled, and of those with a mark what finish gives of it;
--         of the members of batches the number (b_job) and that of the batch (b_of), and these batches with their ids;
--         more if it stopped because it had skipped too many jobs
-- holds   jobs of the line and of open blocked queues come in one order. A job that a limit of its own holds back goes
--         to the blocked queue of that limit. Where rules bind, the caller holds the namespace alone
-- takes   rules by number from 1, and as texts the numbers of those that apply to each task that the caller knows;
--         usage_keys and usage_deltas, which this exchange has changed and limit_usage does not show yet.
--         rung: 0 for none, -1 for an elastic job, -2 for a session
-- plan    rows of arrays come from functions in SELECT: those in FROM keep what they return in a table of its own.
--         Queries name the columns that they use, because each plan node prepares all columns at every claim.
--         reads the line by its primary key from the key on that the caller gives: rows that are gone lie before it.
--         It looks at one job after the other only if something may hold one of them back. Where limits do, it reads
--         half as many jobs again as it may claim: with 200 keys of a limit of 1, one round does instead of seven
CREATE OR REPLACE FUNCTION {schema}.claim_{version}(
  ns int, now_at bigint, asker text, claim_id bytea, class int, fair boolean, want int, until_at bigint,
  from_key bigint, has_blocked boolean, skipped_max int,
  r_name text[], r_prefix text[], r_limit int[], r_interval bigint[], r_burst bigint[], r_tenant boolean[],
  k_task text[], k_rules text[], k_default text, paused_tasks text[], paused_tenants text[],
  rung int, rung_names text[], rung_limits int[], in_pool boolean,
  INOUT usage_keys text[], INOUT usage_deltas int[], INOUT rung_counts int[],
  OUT got int, OUT line_key bigint, OUT highest_key bigint, OUT more boolean, OUT gone text[],
  OUT l_seq bigint[], OUT l_id text[], OUT l_task text[], OUT l_payload bytea[], OUT l_tenant text[],
  OUT l_trace text[], OUT l_retries int[], OUT l_asked bigint[], OUT l_submitted bigint[], OUT l_more text[],
  OUT l_rung text[], OUT l_damaged text[],
  OUT m_seq bigint[], OUT m_batch bigint[], OUT m_awaited boolean[],
  OUT b_job bigint[], OUT b_of bigint[], OUT b_seq bigint[], OUT b_id text[])
LANGUAGE plpgsql AS $$
DECLARE
  now_us bigint := now_at * 1000;
  extra text[];            -- Counters beside those of limits, for every job of this class.
  room int := 2147483647;  -- How many more jobs may start on the ladder.
  skipped int := 0;
  stop boolean := false;
  asked int;
  fetched int;             -- How many candidates to read.
  opened int;              -- Open blocked queues, up to as many as jobs are asked for.
  per_queue int;
  -- The candidates of one round.
  size int;
  c_spot tid[];
  c_seq bigint[];
  c_key bigint[];
  c_queue text[];          -- The blocked queue that each is in; '' for the line.
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
  c_eligible bigint[];     -- These three are read only if one of them is dated.
  c_expires bigint[];
  c_batch bigint[];
  m_job bigint[];          -- The members of batches among them,
  m_of bigint[];           -- and the batch of each.
  cancelled bigint[];      -- The batches among them that are cancelled.
  careful boolean;         -- Some come from blocked queues.
  dated boolean;           -- Some have expired, or their batch is cancelled, or they became eligible too late.
  again boolean;           -- There may be candidates that were not read.
  -- The counters that they need room in.
  d_task text[];
  d_rules text[];
  ruled boolean;           -- A rule limits one of the tasks.
  limited boolean;
  fits boolean;
  p_job int[];             -- Pairs of a candidate and a counter: the candidate,
  p_key text[];            -- the key of the counter,
  p_rule int[];            -- and its rule, 0 for a pause.
  h_job int[];             -- Of the limits on how many run, the candidates: their keys are in held.
  rate_keys text[];        -- The keys of rates, which count starts.
  n_key text[];
  n_rule int[];
  n_room int[];            -- How many more jobs may hold it. None: a rate alone.
  n_reached bigint[];
  n_starts int[];
  n_closed boolean[];      -- The walk found that there is no room.
  -- What becomes of them.
  chosen int[];            -- None stands for all.
  is_chosen boolean[];     -- The same, for each candidate.
  taken text[];            -- The limits that the leased jobs hold, once for each job.
  single boolean;          -- Each job holds exactly one limit.
  held text[];             -- The limit that each job holds, or the text of an array of them.
  s_seq bigint[];          -- The numbers of the candidates in order, and beside each what is held and assigned.
  s_held text[];
  s_assigned text[];
  found int;
  changed boolean;         -- A submit that has ended meanwhile has changed a job of a blocked queue.
  assigned text;
  assigned_each text[];
  expired int[];
  moved int[];
  moved_to text[];
  moved_seq bigint[];
  closed text[];           -- Blocked queues without room,
  closed_until bigint[];   -- and until when, if that is known.
  touched text[];          -- Blocked queues that jobs have left.
  -- Where the walk over the candidates is.
  queue text;
  pair int;
  first_pair int;
  counter int;
  full_key text;           -- The first key of the candidate that has no room,
  full_until bigint;       -- and until when.
  start_us bigint;
  step int;
BEGIN
  got := 0;
  more := false;
  extra := CASE WHEN in_pool THEN ARRAY['=pool'] ELSE '{}' END;
  step := CASE WHEN rung = -2 THEN 1 ELSE rung END;
  IF rung <> 0 THEN
    room := {schema}.rung_room_{version}(rung_counts, rung_limits, greatest(step, 1));
  END IF;
  LOOP
    asked := want - got;
    fetched := asked;
    IF has_blocked THEN
      opened := (SELECT count(*) FROM (
        SELECT FROM {schema}.park p WHERE p.class_id = class AND p.open LIMIT asked) x);
      per_queue := asked / greatest(1, opened) + 2;
      IF opened > 0 OR skipped > 0 THEN
        -- Limits hold some of them back, and a further round costs more than to read on.
        fetched := asked + asked / 2 + 8;
      END IF;
    END IF;
    SELECT count(*)::int, array_agg(x.ctid), array_agg(x.seq), array_agg(x.order_key), array_agg(x.park),
           array_agg(x.last), array_agg(x.job_id), array_agg(x.task), array_agg(x.payload), array_agg(x.job_tenant),
           array_agg(x.trace_id), array_agg(x.max_retries), array_agg(x.asked_ms), array_agg(x.submitted_at),
           CASE WHEN bool_or(x.limits IS NOT NULL) THEN array_agg(x.limits) END, array_agg(x.more),
           bool_or(x.park <> ''), bool_or(x.expires_at <= now_at OR x.eligible_at > until_at) IS TRUE,
           array_agg(x.seq) FILTER (WHERE x.batch_seq IS NOT NULL),
           array_agg(x.batch_seq) FILTER (WHERE x.batch_seq IS NOT NULL)
      INTO size, c_spot, c_seq, c_key, c_queue, c_last, c_id, c_task, c_payload, c_tenant, c_trace, c_retries,
           c_asked, c_submitted, c_limits, c_more, careful, dated, m_job, m_of
      FROM (SELECT r.ctid, r.seq, r.order_key, r.park, r.last, r.eligible_at, r.expires_at, r.batch_seq, j.job_id,
                   j.task, j.payload, j.tenant AS job_tenant, j.trace_id, j.max_retries, j.timeout_ms AS asked_ms,
                   j.submitted_at, j.limits,
                   CASE WHEN r.epoch > 0 OR r.timeout_ms IS NOT NULL OR j.retry IS NOT NULL
                          OR r.eligible_at <> j.submitted_at
                        THEN json_build_array(r.epoch + 1, r.attempts + 1, r.crashes,
                                              coalesce(r.timeout_ms, j.timeout_ms), j.retry, r.eligible_at)::text
                    END AS more
              FROM (SELECT * FROM (
                      SELECT * FROM (
                        SELECT r.ctid, r.seq, r.order_key, r.park, false AS last, r.eligible_at, r.expires_at,
                               r.batch_seq, r.epoch, r.attempts, r.crashes, r.timeout_ms FROM {schema}.ready r
                         WHERE r.class_id = class AND r.park = '' AND r.order_key >= from_key
                         ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT fetched FOR UPDATE SKIP LOCKED) line
                      UNION ALL
                      SELECT q.* FROM (
                        -- As many jobs of a queue can start as its limit says, and the next shows that it is full.
                        SELECT p.park, least(per_queue - 1,
                                             r_limit[array_position(r_name, split_part(p.park, '=', 1))]) + 1 AS most
                          FROM {schema}.park p WHERE has_blocked AND p.class_id = class AND p.open
                         ORDER BY p.head_key, p.head_seq LIMIT fetched) p
                       CROSS JOIN LATERAL (
                         SELECT r.ctid, r.seq, r.order_key, r.park,
                                row_number() OVER (ORDER BY r.order_key, r.seq) = p.most AS last, r.eligible_at,
                                r.expires_at, r.batch_seq, r.epoch, r.attempts, r.crashes, r.timeout_ms
                           FROM {schema}.ready r WHERE r.class_id = class AND r.park = p.park
                          ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT p.most) q) m
                     ORDER BY m.order_key, m.seq LIMIT fetched) r
              JOIN {schema}.job j ON j.seq = r.seq ORDER BY r.order_key, r.seq) x;
    EXIT WHEN size = 0;
    again := size = fetched;
    cancelled := NULL;
    IF m_job IS NOT NULL THEN
      SELECT array_agg(b.seq) FILTER (WHERE b.cancel_at IS NOT NULL), b_seq || array_agg(b.seq),
             b_id || array_agg(b.batch_id) INTO cancelled, b_seq, b_id
        FROM {schema}.batch b WHERE b.seq = ANY (m_of);
      b_job := b_job || m_job;
      b_of := b_of || m_of;
      dated := dated OR cancelled IS NOT NULL;
    END IF;
    IF dated THEN
      SELECT array_agg(x.eligible_at), array_agg(x.expires_at), array_agg(x.batch_seq)
        INTO c_eligible, c_expires, c_batch
        FROM (SELECT r.eligible_at, r.expires_at, r.batch_seq FROM unnest(c_spot) WITH ORDINALITY s (spot, o)
               CROSS JOIN LATERAL (SELECT * FROM {schema}.ready r WHERE r.ctid = s.spot OFFSET 0) r ORDER BY s.o) x;
    END IF;
    changed := false;
    chosen := NULL;
    is_chosen := NULL;
    held := NULL;
    single := false;
    c_damaged := NULL;
    limited := false;
    IF k_task IS NOT NULL THEN
      SELECT array_agg(t.task), array_agg(coalesce(k_rules[t.place], k_default)),
             bool_or(coalesce(k_rules[t.place], k_default) <> '{}')
        INTO d_task, d_rules, ruled
        FROM (SELECT t.task, array_position(k_task, t.task) AS place
                FROM (SELECT DISTINCT unnest(c_task) AS task) t) t;
      IF array_position(d_rules, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'HW002', MESSAGE = (
          SELECT json_agg(d.task)::text FROM unnest(d_task, d_rules) d (task, rules) WHERE d.rules IS NULL);
      END IF;
      limited := ruled OR c_limits IS NOT NULL OR c_task && paused_tasks OR c_tenant && paused_tenants;
    END IF;
    WHILE limited LOOP
      BEGIN
        -- As core's RuleIndex.keys: pauses, then limits on how many run, then rates.
        SELECT array_agg(k.job::int), array_agg(k.key), array_agg(k.rule), count(*) > 0,
               array_agg(k.key) FILTER (WHERE r_limit[k.rule] IS NOT NULL),
               array_agg(k.job::int) FILTER (WHERE r_limit[k.rule] IS NOT NULL),
               array_agg(k.key) FILTER (WHERE r_interval[k.rule] IS NOT NULL)
          INTO p_job, p_key, p_rule, limited, held, h_job, rate_keys
          FROM (SELECT t.job, 0 AS kind, '=paused:task:' || t.task AS key, 0 AS rule
                  FROM unnest(c_task) WITH ORDINALITY t (task, job)
                 WHERE paused_tasks IS NOT NULL AND t.task = ANY (paused_tasks)
                UNION ALL
                SELECT t.job, 1, '=paused:tenant:' || t.tenant, 0
                  FROM unnest(c_tenant) WITH ORDINALITY t (tenant, job)
                 WHERE paused_tenants IS NOT NULL AND t.tenant = ANY (paused_tenants)
                UNION ALL
                SELECT t.job, CASE WHEN r_interval[d.rule] IS NULL THEN 2 ELSE 3 END,
                       CASE WHEN r_tenant[d.rule] THEN r_prefix[d.rule] || '=' || coalesce(t.tenant, '')
                            ELSE r_name[d.rule] END, d.rule
                  FROM (SELECT unnest(c_task) AS task, unnest(c_tenant) AS tenant,
                               generate_subscripts(c_task, 1) AS job) t
                  JOIN (SELECT d.task, n.rule FROM unnest(d_task, d_rules) d (task, rules)
                         CROSS JOIN LATERAL unnest(d.rules::int[]) n (rule)) d ON d.task = t.task
                 WHERE ruled
                UNION ALL
                SELECT b.job, CASE WHEN r_interval[b.rule] IS NULL THEN 2 ELSE 3 END, b.key, b.rule
                  FROM (SELECT b.job, b.key, array_position(r_name, split_part(b.key, '=', 1)) AS rule
                          FROM (SELECT l.job, l.keys ->> generate_series(0, json_array_length(l.keys) - 1) AS key
                                  FROM (SELECT l.job, l.limits::json AS keys
                                          FROM (SELECT unnest(c_limits) AS limits,
                                                       generate_subscripts(c_limits, 1) AS job) l
                                         WHERE l.limits IS NOT NULL OFFSET 0) l) b OFFSET 0) b
                 WHERE b.rule IS NOT NULL
                 ORDER BY 1, 2, 3) k;
        EXIT;
      EXCEPTION WHEN data_exception THEN
        -- A job whose limits cannot be read never runs, so no limit counts it.
        c_damaged := ARRAY(SELECT CASE WHEN {schema}.is_list_{version}(l.limits) THEN NULL ELSE l.limits END
                             FROM unnest(c_limits) WITH ORDINALITY l (limits, o) ORDER BY l.o);
        c_limits := ARRAY(SELECT CASE WHEN d.damaged IS NULL THEN d.limits END
                            FROM unnest(c_limits, c_damaged) WITH ORDINALITY d (limits, damaged, o) ORDER BY d.o);
      END;
    END LOOP;
    fits := true;
    IF limited THEN
      SELECT array_agg(x.key), array_agg(x.rule),
             array_agg(CASE WHEN x.rule = 0 THEN 0 ELSE r_limit[x.rule] - x.used END), array_agg(x.reached_us),
             array_agg(x.starts),
             bool_and(CASE WHEN x.rule = 0 THEN false
                           ELSE coalesce(x.used + x.starts <= r_limit[x.rule], true)
                            AND coalesce((greatest(x.reached_us, now_us)
                                          + (x.starts - r_burst[x.rule]) * r_interval[x.rule]) / 1000 <= now_at, true)
                           END)
        INTO n_key, n_rule, n_room, n_reached, n_starts, fits
        FROM (SELECT a.key, max(a.rule) AS rule, sum(a.starts)::int AS starts, sum(a.used)::int AS used,
                     max(a.reached_us) AS reached_us
                FROM (SELECT p.key COLLATE "C" AS key, p.rule, 1 AS starts, 0 AS used, NULL::bigint AS reached_us
                        FROM (SELECT unnest(p_key) AS key, unnest(p_rule) AS rule) p
                      UNION ALL
                      SELECT d.key, NULL, 0, d.delta, NULL
                        FROM (SELECT unnest(usage_keys) AS key, unnest(usage_deltas) AS delta) d
                      UNION ALL
                      SELECT u.limit_key, NULL, 0, u.count, NULL FROM {schema}.limit_usage u
                       WHERE u.namespace_id = ns AND u.limit_key = ANY (held)
                      UNION ALL
                      SELECT r.rate_key, NULL, 0, 0, r.reached_us FROM {schema}.rate r
                       WHERE r.namespace_id = ns AND r.rate_key = ANY (rate_keys)) a
               GROUP BY a.key HAVING sum(a.starts) > 0 ORDER BY a.key) x;
    END IF;
    IF rung = -1 THEN
      step := {schema}.longest_rung_{version}(rung_counts, rung_limits);
    END IF;
    assigned := CASE WHEN rung <> -2 THEN rung_names[step] END;

    IF NOT careful AND NOT dated AND fits AND size <= least(room, asked) AND skipped < skipped_max
       AND (rung <> -1 OR size <= {schema}.rung_room_{version}(rung_counts, rung_limits, step)) THEN
      assigned_each := CASE WHEN assigned IS NOT NULL THEN array_fill(assigned, ARRAY[size]) END;
      taken := held;
      IF rung <> 0 THEN
        rung_counts[step] := rung_counts[step] + size;
        room := room - size;
      END IF;
    ELSE
      IF limited THEN
        n_starts := array_fill(0, ARRAY[cardinality(n_key)]);
        n_closed := array_fill(false, ARRAY[cardinality(n_key)]);
      ELSE
        p_job := NULL;
        p_key := NULL;
      END IF;
      chosen := '{}';
      is_chosen := array_fill(false, ARRAY[size]);
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
        queue := c_queue[o];
        counter := width_bucket(p_key[pair] COLLATE "C", n_key);
        CONTINUE WHEN queue <> ''
                  AND CASE WHEN queue = p_key[pair] THEN n_closed[counter] ELSE queue = ANY (closed) END;
        IF dated AND c_eligible[o] > until_at THEN
          stop := true;
          EXIT;
        END IF;
        IF skipped = skipped_max THEN
          more := true;
          EXIT;
        END IF;
        IF dated AND (c_expires[o] <= now_at OR c_batch[o] = ANY (cancelled)) THEN
          expired := expired || o;
          touched := touched || queue;
          skipped := skipped + 1;
        ELSIF room <= 0 THEN
          stop := true;
          EXIT;
        ELSE
          first_pair := pair;
          full_key := NULL;
          WHILE p_job[pair] = o LOOP
            IF pair > first_pair THEN
              counter := width_bucket(p_key[pair] COLLATE "C", n_key);
            END IF;
            IF n_room[counter] <= 0 AND p_key[pair] <> ALL (p_key[first_pair:pair - 1]) THEN
              full_key := p_key[pair];
              full_until := NULL;
              EXIT;
            END IF;
            IF rate_keys IS NOT NULL AND r_interval[p_rule[pair]] IS NOT NULL THEN
              start_us := greatest(n_reached[counter], now_us);
              full_until := (start_us - (r_burst[p_rule[pair]] - 1) * r_interval[p_rule[pair]]) / 1000;
              IF full_until > now_at AND p_key[pair] <> ALL (p_key[first_pair:pair - 1]) THEN
                full_key := p_key[pair];
                EXIT;
              END IF;
              n_reached[counter] := start_us + r_interval[p_rule[pair]];
              n_starts[counter] := n_starts[counter] + 1;
            END IF;
            n_room[counter] := n_room[counter] - 1;
            pair := pair + 1;
          END LOOP;
          IF full_key IS NOT NULL THEN
            skipped := skipped + 1;
            IF NOT n_closed[counter] THEN
              n_closed[counter] := true;
              closed := closed || full_key;
              closed_until := closed_until || full_until;
            END IF;
            IF queue <> full_key THEN
              moved := moved || o;
              moved_to := moved_to || full_key;
              touched := touched || queue;
            END IF;
            FOR i IN first_pair .. pair - 1 LOOP  -- It gives back what it has taken from the counters before.
              counter := width_bucket(p_key[i] COLLATE "C", n_key);
              n_room[counter] := n_room[counter] + 1;
              IF r_interval[p_rule[i]] IS NOT NULL THEN
                n_reached[counter] := n_reached[counter] - r_interval[p_rule[i]];
                n_starts[counter] := n_starts[counter] - 1;
              END IF;
            END LOOP;
          ELSE
            IF rung <> 0 THEN
              IF rung = -1 THEN
                step := {schema}.longest_rung_{version}(rung_counts, rung_limits);
                assigned := rung_names[step];
              END IF;
              assigned_each[o] := assigned;
              rung_counts[step] := rung_counts[step] + 1;
              room := room - 1;
            END IF;
            chosen := chosen || o;
            is_chosen[o] := true;
            IF queue <> '' THEN
              touched := touched || queue;
            END IF;
            EXIT WHEN cardinality(chosen) = asked;
          END IF;
        END IF;
        IF c_last[o] AND queue <> ALL (closed) THEN
          again := true;
          EXIT;
        END IF;
      END LOOP;
      IF limited THEN
        taken := ARRAY(SELECT h.key FROM (SELECT unnest(h_job) AS job, unnest(held) AS key) h WHERE is_chosen[h.job]);
      END IF;

      IF expired <> '{}' THEN
        WITH e AS (
          DELETE FROM {schema}.ready r WHERE r.ctid = ANY (ARRAY(SELECT c_spot[i] FROM unnest(expired) i))
          RETURNING *),
        o AS (
          INSERT INTO {schema}.outcome (seq, finished_at, eligible_at, timeout_ms, epoch, attempts, crashes, state,
                                        token, error, reason)
          SELECT e.seq, now_at, e.eligible_at, e.timeout_ms, e.epoch, e.attempts, e.crashes, 'cancelled', e.token,
                 e.error, CASE WHEN e.batch_seq = ANY (cancelled)
                               THEN 'batch ' || (SELECT b.batch_id FROM {schema}.batch b WHERE b.seq = e.batch_seq)
                               ELSE 'expired' END FROM e),
        u AS (
          DELETE FROM {schema}.unique_key u
           WHERE u.namespace_id = ns AND u.unique_key = ANY (ARRAY(SELECT e.unique_key FROM e)))
        SELECT gone || ARRAY(SELECT c_id[i] FROM unnest(expired) i),
               m_seq || array_agg(e.seq) FILTER (WHERE e.batch_seq IS NOT NULL OR e.awaited),
               m_batch || array_agg(e.batch_seq) FILTER (WHERE e.batch_seq IS NOT NULL OR e.awaited),
               m_awaited || array_agg(e.awaited) FILTER (WHERE e.batch_seq IS NOT NULL OR e.awaited),
               count(*) < cardinality(expired)
          INTO gone, m_seq, m_batch, m_awaited, changed FROM e;
      END IF;
      IF moved <> '{}' THEN
        SELECT array_agg(m.seq), array_agg(m.key) INTO moved_seq, moved_to
          FROM (SELECT c_seq[m.i] AS seq, m.key FROM (SELECT unnest(moved) AS i, unnest(moved_to) AS key) m
                 ORDER BY 1) m;
        UPDATE {schema}.ready r SET park = moved_to[width_bucket(r.seq, moved_seq)],
               parked_at = coalesce(r.parked_at, now_at)
         WHERE r.ctid = ANY (ARRAY(SELECT c_spot[m.i] FROM (SELECT unnest(moved) AS i) m));
        GET DIAGNOSTICS found = ROW_COUNT;
        changed := changed OR found < cardinality(moved);
        UPDATE {schema}.job j SET park = moved_to[width_bucket(j.seq, moved_seq)] WHERE j.seq = ANY (moved_seq);
        has_blocked := true;
      END IF;
    END IF;

    IF limited THEN
      usage_keys := usage_keys || taken;
      usage_deltas := usage_deltas || array_fill(1, ARRAY[coalesce(cardinality(taken), 0)]);
      IF rate_keys IS NOT NULL THEN
        INSERT INTO {schema}.rate (namespace_id, rate_key, reached_us)
        SELECT ns, n.key, CASE WHEN chosen IS NULL THEN greatest(n.reached, now_us) + n.starts * r_interval[n.rule]
                               ELSE n.reached END
          FROM (SELECT unnest(n_key) AS key, unnest(n_rule) AS rule, unnest(n_starts) AS starts,
                       unnest(n_reached) AS reached) n
         WHERE r_interval[n.rule] IS NOT NULL AND n.starts > 0
            ON CONFLICT (namespace_id, rate_key) DO UPDATE SET reached_us = excluded.reached_us;
      END IF;
      single := h_job = ARRAY(SELECT generate_series(1, size));
      IF single IS NOT TRUE THEN
        held := ARRAY(SELECT (array_agg(k.key) FILTER (WHERE k.key IS NOT NULL))::text
                        FROM (SELECT unnest(h_job) AS job, unnest(held) AS key
                              UNION ALL SELECT generate_series(1, size), NULL) k
                       GROUP BY k.job ORDER BY k.job);
      END IF;
    END IF;
    IF chosen IS NULL OR chosen <> '{}' THEN
      s_seq := NULL;
      IF limited OR rung <> 0 THEN
        IF c_key = c_seq THEN
          s_seq := c_seq;
          s_held := held;
          s_assigned := assigned_each;
        ELSE
          SELECT array_agg(x.seq), array_agg(held[x.o]), array_agg(assigned_each[x.o]) INTO s_seq, s_held, s_assigned
            FROM (SELECT unnest(c_seq) AS seq, generate_subscripts(c_seq, 1) AS o ORDER BY 1) x;
        END IF;
      END IF;
      WITH r AS (
        DELETE FROM {schema}.ready r
         WHERE r.ctid = ANY (CASE WHEN chosen IS NULL THEN c_spot
                                  ELSE ARRAY(SELECT c_spot[c.i] FROM (SELECT unnest(chosen) AS i) c) END)
        RETURNING r.seq, r.order_key, r.eligible_at, r.timeout_ms, r.parked_at, r.epoch, r.attempts, r.crashes,
                  r.tenant, r.unique_key, r.park, r.batch_seq, r.awaited, width_bucket(r.seq, s_seq) AS o)
      INSERT INTO {schema}.lease (seq, order_key, started_at, eligible_at, timeout_ms, parked_ms, class_id, epoch,
                                  attempts, crashes, token, worker_id, tenant, unique_key, limit_keys, assigned,
                                  parked_for, batch_seq, awaited)
      SELECT r.seq, r.order_key, now_at, r.eligible_at, r.timeout_ms, now_at - r.parked_at, class, r.epoch + 1,
             r.attempts + 1, r.crashes, claim_id, asker, CASE WHEN fair THEN coalesce(r.tenant, '') END, r.unique_key,
             CASE WHEN single AND rung = 0 AND extra = '{}' THEN ARRAY[s_held[r.o]]
                  WHEN limited OR rung <> 0 OR in_pool
                  THEN nullif(CASE WHEN single THEN ARRAY[s_held[r.o]] ELSE coalesce(s_held[r.o]::text[], '{}') END
                              || extra
                              || CASE WHEN rung = -2 THEN ARRAY['=rung:' || rung_names[1]]
                                      WHEN s_assigned[r.o] IS NOT NULL THEN ARRAY['=rung:' || s_assigned[r.o]]
                                      ELSE '{}' END, '{}') END,
             CASE WHEN s_seq IS NOT NULL THEN s_assigned[r.o] END,
             CASE WHEN r.park <> '' THEN {schema}.blocked_for_{version}(r.park, r_name, r_limit) END,
             r.batch_seq, r.awaited FROM r;
      GET DIAGNOSTICS found = ROW_COUNT;
      changed := changed OR found < coalesce(cardinality(chosen), size);
    END IF;
    IF changed THEN
      RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = 'a blocked job has changed meanwhile';
    END IF;
    IF chosen IS NULL THEN
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
        got := got + cardinality(chosen);
        SELECT greatest(line_key, max(c_key[c.i]) FILTER (WHERE c_queue[c.i] = '')),
               greatest(highest_key, max(c_key[c.i])),
               l_seq || array_agg(c_seq[c.i]), l_id || array_agg(c_id[c.i]), l_task || array_agg(c_task[c.i]),
               l_payload || array_agg(c_payload[c.i]), l_tenant || array_agg(c_tenant[c.i]),
               l_trace || array_agg(c_trace[c.i]), l_retries || array_agg(c_retries[c.i]),
               l_asked || array_agg(c_asked[c.i]), l_submitted || array_agg(c_submitted[c.i]),
               l_more || array_agg(c_more[c.i]), l_rung || array_agg(assigned_each[c.i]),
               l_damaged || array_agg(c_damaged[c.i])
          INTO line_key, highest_key, l_seq, l_id, l_task, l_payload, l_tenant, l_trace, l_retries, l_asked,
               l_submitted, l_more, l_rung, l_damaged
          FROM (SELECT unnest(chosen) AS i) c;
      END IF;
      touched := array_remove(touched, '');
      IF touched <> '{}' OR closed <> '{}' THEN
        WITH a AS (
          SELECT x.key, max(x.o) > 0 AS closed, (array_agg(x.until_at ORDER BY x.o DESC))[1] AS open_at
            FROM (SELECT unnest(touched) AS key, 0 AS o, NULL::bigint AS until_at
                  UNION ALL
                  SELECT unnest(closed), generate_subscripts(closed, 1), unnest(closed_until)) x GROUP BY x.key),
        h AS (
          SELECT a.*, r.order_key, r.seq FROM a
            LEFT JOIN LATERAL (SELECT r.order_key, r.seq FROM {schema}.ready r
                                WHERE r.class_id = class AND r.park = a.key
                                ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1) r ON true),
        e AS (
          DELETE FROM {schema}.park p
           WHERE p.namespace_id = ns AND p.class_id = class
             AND p.park = ANY (ARRAY(SELECT h.key FROM h WHERE h.seq IS NULL)))
        INSERT INTO {schema}.park AS p (namespace_id, park, class_id, open, open_at, head_key, head_seq)
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
