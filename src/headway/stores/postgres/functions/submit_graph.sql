-- submit_graph: keep the batch, the jobs and the edges of a graph, or nothing of it.
-- gives   as submit; or a status: unknown, foreign or cycle, with the index of a job and a source that the store does
--         not have, that is of another tenant, or of which the job is a member; missing or closed, with a batch;
--         tenant, with a batch of another tenant and the index of the job that cannot be its member, or without one for
--         a child batch; and the batch of the members, and whether it is new. It raises HW005 if the batch has ended
--         meanwhile
-- holds   to settle an edge from what existed before, it takes the locks of the namespace and of the flow before any
--         row, as an exchange does. Inside a caller's transaction (own) it takes neither, and no job is settled: what
--         existed before is left unsettled, so that the next exchange marks and settles it. Only the row of a batch
--         that existed before is held until the caller commits
-- takes   jobs as submit takes them, those with edges due at HELD_AT; the numbers from 1 of the latter (w_node) with
--         their own delays; alone, as release takes it; and edges by the number of their job, with the source's id
--         and, if it is in the graph, its number, 0 for the new batch
CREATE OR REPLACE FUNCTION {schema}.submit_graph_{version}(
  ns int, at bigint, rules bigint, own boolean, careful boolean, alone boolean,
  g_class int[], g_tenant text[], g_persist boolean[], g_lane text[], g_rung text[], g_needs text[],
  ids text[], tasks text[], payloads bytea[], groups int[], steps bigint[], timeouts bigint[], retries int[],
  retry text[], delays bigint[], dues bigint[], expiries bigint[], keys text[], key_ms bigint[], digests bytea[],
  uniques text[], traces text[], limits text[],
  members boolean[], awaited boolean[], back boolean, w_node int[], w_due bigint[], w_delay bigint[],
  e_node int[], e_place int[], e_source text[], e_inner int[], e_rule text[],
  given_id text, creates boolean, b_name text, b_key text, b_tenant text, b_parent text, b_open boolean,
  s_task text[], s_tenant text[], s_step bigint[],
  OUT status text, OUT bad int, OUT what text, OUT known int[], OUT known_ids text[], OUT classes int[],
  OUT batch_id text, OUT created boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  now_at bigint := {schema}.now_ms_{version}(at);
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
      SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO target FROM {schema}.batch b
       WHERE b.namespace_id = ns AND b.key = b_key AND coalesce(b.tenant, '') = coalesce(b_tenant, '');
      IF NOT FOUND THEN
        SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO target FROM {schema}.batch b
         WHERE b.batch_id = given_id AND b.namespace_id = ns;
      END IF;
      IF own AND target.seq IS NOT NULL THEN
        -- The caller must be able to go on after an error, so the batch may not end before its commit.
        SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO target FROM {schema}.batch b
         WHERE b.seq = target.seq FOR NO KEY UPDATE;
      END IF;
      created := creates AND target.seq IS NULL;
      IF created AND b_parent IS NOT NULL THEN
        SELECT b.seq, b.batch_id, b.tenant, b.cancel_at, b.finished_at INTO parent FROM {schema}.batch b
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
           WHERE i.member AND NOT EXISTS (SELECT FROM {schema}.job j WHERE j.job_id = i.id AND j.namespace_id = ns))
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
                                    ELSE (SELECT b.parent_seq FROM {schema}.batch b WHERE b.seq = target.seq) END AS seq
        UNION ALL SELECT b.batch_id, b.parent_seq FROM around a JOIN {schema}.batch b ON b.seq = a.seq)
      SELECT x.node - 1, x.source, CASE WHEN x.cycle THEN 'cycle' WHEN x.found THEN 'foreign' ELSE 'unknown' END
        INTO bad, what, status
        FROM (SELECT e.node, e.source, e.o,
                     members[e.node] AND e.source IN (SELECT a.id FROM around a UNION ALL SELECT target.batch_id) AS
                       cycle,
                     e.inner_node IS NOT NULL OR j.seq IS NOT NULL OR b.seq IS NOT NULL AS found,
                     CASE WHEN e.inner_node > 0 THEN g_tenant[groups[e.inner_node]] WHEN e.inner_node = 0 THEN b_tenant
                          ELSE coalesce(j.tenant, b.tenant) END AS tenant
                FROM unnest(e_node, e_source, e_inner) WITH ORDINALITY e (node, source, inner_node, o)
                LEFT JOIN LATERAL (SELECT j.seq, j.tenant FROM {schema}.job j WHERE e.inner_node IS NULL
                                      AND j.job_id = e.source AND j.namespace_id = ns OFFSET 0) j ON true
                LEFT JOIN LATERAL (SELECT b.seq, b.tenant FROM {schema}.batch b WHERE e.inner_node IS NULL
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
        PERFORM pg_advisory_xact_lock({lock}, ns);
      ELSE
        PERFORM pg_advisory_xact_lock_shared({lock}, ns);
      END IF;
      PERFORM pg_advisory_xact_lock({flow}, ns);
      locked := true;
    END IF;
    EXIT WHEN NOT created;
    target.seq := nextval('{schema}.sequence');
    INSERT INTO {schema}.batch (seq, namespace_id, batch_id, name, key, tenant, parent_seq, open, created_at)
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
    SELECT * INTO done FROM {schema}.submit_{version}(
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
        DELETE FROM {schema}.batch b WHERE b.seq = target.seq;
      END IF;
      RETURN;
    END IF;
    IF target.seq IS NOT NULL THEN
      SELECT count(*) INTO fresh FROM unnest(numbers, members) x (number, member) WHERE x.number > 0 AND x.member;
      SELECT count(*) INTO fresh_held FROM unnest(w_node) w (node) WHERE numbers[w.node] > 0 AND members[w.node];
    END IF;
  END IF;
  IF fresh > 0 THEN
    UPDATE {schema}.batch b SET total = b.total + fresh, live = b.live + fresh, held = b.held + fresh_held
     WHERE b.seq = target.seq AND b.cancel_at IS NULL AND b.finished_at IS NULL;
    IF NOT FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'HW005', MESSAGE = batch_id;
    END IF;
  END IF;
  IF created AND parent_seq IS NOT NULL THEN
    UPDATE {schema}.batch b SET total = b.total + 1, live = b.live + 1, children = b.children + 1
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
                                    ELSE (SELECT j.seq FROM {schema}.job j
                                           WHERE j.job_id = n.id AND j.namespace_id = ns) END
                          FROM unnest(numbers, node_id) WITH ORDINALITY n (number, id, o) ORDER BY n.o);
    END IF;
    INSERT INTO {schema}.edge (source_seq, dependant_seq, place, satisfied, rule, source)
    SELECT coalesce(CASE WHEN e.inner_node > 0 THEN node_seq[e.inner_node] WHEN e.inner_node = 0 THEN target.seq END,
                    j.seq, b.seq, 0),  -- A key may stand for a job that was pruned. It has failed for its dependants.
           numbers[e.node], e.place, false, e.rule,
           CASE WHEN e.inner_node > 0 AND numbers[e.inner_node] = 0 THEN node_id[e.inner_node] ELSE e.source END
      FROM unnest(e_node, e_place, e_source, e_inner, e_rule) WITH ORDINALITY e (node, place, source, inner_node,
        rule, o)
      LEFT JOIN LATERAL (SELECT j.seq FROM {schema}.job j WHERE e.inner_node IS NULL AND j.job_id = e.source
                            AND j.namespace_id = ns OFFSET 0) j ON true
      LEFT JOIN LATERAL (SELECT b.seq FROM {schema}.batch b WHERE e.inner_node IS NULL AND b.batch_id = e.source
                            AND b.namespace_id = ns OFFSET 0) b ON true
     WHERE numbers[e.node] > 0 ORDER BY e.o
        ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.dependant (seq, pending, due_at, back)
    SELECT numbers[w.node],
           (SELECT count(*) FROM {schema}.edge e WHERE e.dependant_seq = numbers[w.node]),
           greatest(coalesce(w.due, 0), now_at + coalesce(w.delay, 0)), submit_graph_{version}.back
      FROM unnest(w_node, w_due, w_delay) w (node, due, delay) WHERE numbers[w.node] > 0;
    GET DIAGNOSTICS fresh_held = ROW_COUNT;
    PERFORM {schema}.count_up_{version}(ns, now_at, ARRAY['held'], ARRAY[fresh_held]::bigint[], own);
    -- Sources that existed before.
    SELECT array_agg(DISTINCT e.dependant_seq), array_agg(DISTINCT e.source_seq) INTO dependants, existing
      FROM unnest(e_node, e_place, e_inner) x (node, place, inner_node)
     CROSS JOIN LATERAL (SELECT e.source_seq, e.dependant_seq FROM {schema}.edge e
                          WHERE e.dependant_seq = numbers[x.node] AND e.place = x.place OFFSET 0) e
     WHERE numbers[x.node] > 0 AND (x.inner_node IS NULL OR x.inner_node > 0 AND numbers[x.inner_node] = 0);
  END IF;
  IF existing IS NULL AND NOT (created AND NOT b_open AND fresh = 0) THEN
    RETURN;
  END IF;

  IF NOT own AND NOT locked THEN
    locked := pg_try_advisory_xact_lock_shared({lock}, ns) AND pg_try_advisory_xact_lock({flow}, ns);
    alone := false;
  END IF;
  IF NOT locked THEN
    INSERT INTO {schema}.unsettled (namespace_id, source_seq, members, reached)
    SELECT ns, x.source, false, dependants[1] - 1 FROM unnest(existing) x (source)
    UNION ALL SELECT ns, target.seq, false, 0 WHERE created AND NOT b_open AND fresh = 0;
    PERFORM pg_notify(n.channel, '*') FROM {schema}.namespace n WHERE n.namespace_id = ns;
    RETURN;
  END IF;
  missed := {schema}.mark_awaited_{version}(ns, existing);
  INSERT INTO {schema}.unsettled (namespace_id, source_seq, members, reached)
  SELECT ns, x.source, false, dependants[1] - 1 FROM unnest(missed) x (source);
  SELECT * INTO moved FROM {schema}.settle_{version}(
    ns, now_at, alone, false, {settled_max}, NULL, NULL, NULL, NULL, NULL, dependants,
    CASE WHEN created THEN ARRAY[target.seq] END, CASE WHEN created THEN ARRAY['live'] END,
    CASE WHEN created THEN ARRAY[0] END, s_task, s_tenant, s_step);
  IF moved.eligible IS NOT NULL THEN
    PERFORM {schema}.wake_{version}(ns, now_at, moved.eligible, NULL);
  END IF;
  IF moved.remains THEN
    PERFORM {schema}.wake_any_{version}(ns, now_at);
  END IF;
  PERFORM {schema}.count_up_{version}(ns, now_at, moved.kinds, moved.counts, false);
  PERFORM {schema}.notify_jobs_{version}(ns, moved.told);
END $$;
