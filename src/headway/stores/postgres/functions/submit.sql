-- submit: keep jobs that are new, recognise those that are known, wake who can run them. All of them, or none.
-- gives   the numbers of the groups' classes, and a status: ok; stale if other rules are in force than those the steps
--         were made by, which a caller's transaction does not use; or conflict, with the index of the job and which
--         of its keys stands for another one; and for duplicates the jobs that stand in for them; and the numbers of
--         the jobs, 0 for those that were known
-- takes   the batch of those jobs that are members, and from which of them an edge comes; none for plain jobs
-- holds   a job id, an idempotency key or a unique key stands for one job, whichever clients submit at the same time;
--         inside a caller's transaction (own) every worker is woken, since who begins to wait before its commit is not
--         seen
CREATE OR REPLACE FUNCTION {schema}.submit_{version}(
  ns int, at bigint, rules bigint, own boolean, careful boolean,
  g_class int[], g_tenant text[], g_persist boolean[], g_lane text[], g_rung text[], g_needs text[],
  ids text[], tasks text[], payloads bytea[], groups int[], steps bigint[], timeouts bigint[], retries int[],
  retry text[], delays bigint[], dues bigint[], expiries bigint[], keys text[], key_ms bigint[], digests bytea[],
  uniques text[], traces text[], limits text[], batch bigint, members boolean[], awaited boolean[],
  OUT status text, OUT bad int, OUT what text, OUT known int[], OUT known_ids text[], OUT classes int[],
  OUT numbers bigint[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  now_at bigint := {schema}.now_ms_{version}(at);
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
      LEFT JOIN {schema}.class c ON c.namespace_id = ns AND c.lane = x.lane AND c.rung = x.rung
       AND c.persist = x.persist
            AND c.needs = ARRAY(SELECT json_array_elements_text(x.needs::json)) COLLATE "C";
  END IF;
  given := g_class;
  SELECT array_agg(coalesce(c.fair, false) ORDER BY x.o), array_agg(coalesce(c.clock, 0) ORDER BY x.o),
         bool_or(x.persist AND (c.fair OR x.tenant IS NOT NULL))
    INTO g_fair, g_clock, shared
    FROM unnest(g_class, g_tenant, g_persist) WITH ORDINALITY x (class, tenant, persist, o)
    LEFT JOIN {schema}.class c ON c.class_id = x.class;
  IF shared AND NOT own AND rules IS DISTINCT FROM (SELECT n.rules FROM {schema}.namespace n WHERE n.namespace_id =
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
      IF careful OR EXISTS (SELECT FROM {schema}.job j WHERE j.job_id = ANY (ids) AND j.namespace_id = ns) THEN
        skip := array_fill(false, ARRAY[size]);
        FOR i IN 1 .. size LOOP
          bad := i - 1;
          SELECT j.task, j.payload INTO kept FROM {schema}.job j WHERE j.job_id = ids[i] AND j.namespace_id = ns;
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
            SELECT k.job_id, k.digest INTO kept FROM {schema}.idempotency k
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
            INSERT INTO {schema}.unique_key (namespace_id, unique_key, job_id) VALUES (ns, uniques[i], ids[i])
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
              SELECT u.job_id INTO kept FROM {schema}.unique_key u
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
            INSERT INTO {schema}.idempotency AS k (namespace_id, tenant, idempotency_key, until_at, job_id, digest)
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
          FROM (SELECT CASE WHEN s.skipped THEN 0 ELSE nextval('{schema}.sequence') END AS n, s.o
                  FROM unnest(skip) WITH ORDINALITY s (skipped, o) ORDER BY s.o) x;
      ELSE
        skip := NULL;
        numbers := ARRAY(SELECT nextval('{schema}.sequence') FROM generate_series(1, size));
      END IF;

      IF array_position(g_class, NULL) IS NOT NULL THEN
        FOR h IN 1 .. cardinality(g_class) LOOP
          CONTINUE WHEN g_class[h] IS NOT NULL
            OR NOT EXISTS (SELECT FROM unnest(groups) WITH ORDINALITY x (g, o) WHERE x.g = h AND skip[x.o] IS NOT TRUE);
          INSERT INTO {schema}.class (namespace_id, lane, rung, needs, persist)
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
            number := {schema}.make_fair_{version}(g_class[g], number);
            FOR h IN 1 .. cardinality(g_class) LOOP
              IF g_class[h] = g_class[g] THEN
                g_fair[h] := true;
                g_clock[h] := number;
              END IF;
            END LOOP;
          END IF;
          IF NOT g_loaded[g] THEN
            g_last[g] := greatest({schema}.last_key_{version}(g_class[g], coalesce(g_tenant[g], '')), g_plain[g]);
            g_loaded[g] := true;
          END IF;
          places[i] := CASE WHEN g_last[g] IS NULL THEN g_clock[g] ELSE greatest(g_clock[g], g_last[g] + steps[i]) END;
          g_last[g] := greatest(g_last[g], places[i]);
        END LOOP;
      END IF;

      INSERT INTO {schema}.job (seq, namespace_id, class_id, order_key, due_at, submitted_at, expires_at, timeout_ms,
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
      INSERT INTO {schema}.ready (order_key, seq, eligible_at, expires_at, class_id, tenant, unique_key, batch_seq,
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
    INSERT INTO {schema}.delayed (due_at, seq, namespace_id, class_id)
    SELECT x.due, x.n, ns, g_class[x.g] FROM unnest(numbers, groups, dues) WITH ORDINALITY x (n, g, due, o)
     WHERE x.due IS NOT NULL AND g_persist[x.g] AND skip[x.o] IS NOT TRUE;
  END IF;
  IF expiries IS NOT NULL THEN
    INSERT INTO {schema}.expiry (namespace_id, expires_at, seq)
    SELECT ns, now_at + x.expires, x.n FROM unnest(numbers, expiries) WITH ORDINALITY x (n, expires, o)
     WHERE x.expires IS NOT NULL AND skip[x.o] IS NOT TRUE;
  END IF;
  IF false = ANY (g_persist) THEN
    INSERT INTO {schema}.transient (seq, timeout_ms, class_id, job_id, task, tenant, trace_id, payload)
    SELECT x.n, x.timeout, g_class[x.g], x.id, x.task, g_tenant[x.g], x.trace, x.payload
      FROM unnest(numbers, groups, timeouts, ids, tasks, traces, payloads)
          WITH ORDINALITY x (n, g, timeout, id, task, trace, payload, o)
     WHERE NOT g_persist[x.g] AND skip[x.o] IS NOT TRUE;
  END IF;
  PERFORM {schema}.count_up_{version}(ns, now_at, ARRAY['submitted'], ARRAY[fresh]::bigint[], own);
  IF own THEN
    -- Who begins to wait before the caller commits would not be seen from here.
    PERFORM pg_notify(n.channel, '*') FROM {schema}.namespace n WHERE n.namespace_id = ns;
  ELSE
    IF size = 1 THEN
      eligible := CASE WHEN dues[1] IS NULL THEN ARRAY[g_class[1]] END;
    ELSE
      SELECT array_agg(g_class[x.g] ORDER BY x.o) INTO eligible FROM unnest(groups, dues) WITH ORDINALITY x (g, due, o)
       WHERE x.due IS NULL AND skip[x.o] IS NOT TRUE;
    END IF;
    PERFORM {schema}.wake_{version}(ns, now_at, eligible, NULL);
  END IF;
  PERFORM {schema}.notify_jobs_{version}(ns, ids || known_ids);
  classes := g_class;
  status := 'ok';
END $$;
