-- settle: settle the edges of sources that have ended or are live again, cancel members of cancelled batches, and count
-- what has changed in batches.
-- gives   the classes of jobs that may start, the ids of jobs that have changed, totals, and whether something is left
-- holds   the caller holds the flow lock or the namespace alone, so that one session at a time settles. It waits for no
--         job that another session is moving: that is left for later. At most budget edges and members are looked at.
--         What is left is written in this transaction
-- plan    every row is looked up by its key, one after the other: without statistics, a join could begin with all held
--         jobs
-- takes   sources with the dependant that was reached and, where the caller knows it, their state; cancelled batches
--         with the member that was reached; held jobs, all of whose edges are to be settled; what changes in which
--         count of which batch; whether earlier verbs have left something; steps and alone, as release takes them
CREATE OR REPLACE FUNCTION {schema}.settle_{version}(
  ns int, now_at bigint, alone boolean, unsettled boolean, budget int,
  q_source bigint[], q_reached bigint[], q_state text[],
  u_batch bigint[], u_reached bigint[], dependants bigint[], c_batch bigint[], c_kind text[], c_count int[],
  s_task text[], s_tenant text[], s_step bigint[],
  OUT eligible int[], OUT told text[], OUT kinds text[], OUT counts bigint[], OUT remains boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
   SET enable_hashjoin = off
  SET enable_mergejoin = off AS $$
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
      FROM (SELECT * FROM {schema}.unsettled u WHERE u.namespace_id = ns ORDER BY u.namespace_id, u.place
             LIMIT budget) u;
  END IF;
  IF stored IS NOT NULL THEN
    DELETE FROM {schema}.unsettled u WHERE u.namespace_id = ns AND u.place = ANY (stored);
    -- A caller's transaction has written edges without a look at their sources.
    wanted := {schema}.mark_awaited_{version}(ns, q_source);
    left_source := wanted;
    left_at := array_fill(0::bigint, ARRAY[cardinality(wanted)]);
    SELECT c_batch || array_agg(b.seq), c_kind || array_agg('live'::text), c_count || array_agg(0)
      INTO c_batch, c_kind, c_count FROM {schema}.batch b WHERE b.seq = ANY (q_source);
  END IF;
  -- Callbacks that ran when a new round of their batch began, and have ended.
  SELECT array_agg(x.dependant_seq), array_agg(x.source_seq) INTO redo, redo_for
    FROM (SELECT DISTINCT ON (e.dependant_seq) e.dependant_seq, e.source_seq FROM {schema}.edge e
           WHERE e.again AND e.dependant_seq = ANY (q_source) ORDER BY e.dependant_seq, e.place) x;

  LOOP
    WHILE cardinality(redo) > 0 OR cardinality(dependants) > 0 OR cardinality(q_source) > 0 AND budget > 0 LOOP
      FOR i IN 1 .. coalesce(cardinality(redo), 0) LOOP
        SELECT * INTO part FROM {schema}.hold_again_{version}(ns, redo[i]);
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
               array_agg({schema}.verdict_{version}(x.rule, x.status, x.failing))
          INTO e_source, e_dependant, e_rule, e_satisfied, e_text, e_status, e_verdict
          FROM (SELECT e.*, count(*) FILTER (WHERE {schema}.verdict_{version}(e.rule, e.status, e.failing) = 'cancel')
                         OVER (PARTITION BY e.dependant_seq ORDER BY e.place) AS cancels,
                       {schema}.verdict_{version}(e.rule, e.status, e.failing) = 'cancel' AS is_cancel
                  FROM (SELECT e.*, d.o, s.status, s.failing
                          FROM unnest(dependants) WITH ORDINALITY d (seq, o)
                         CROSS JOIN LATERAL (SELECT * FROM {schema}.edge e WHERE e.dependant_seq = d.seq OFFSET 0) e
                         CROSS JOIN LATERAL {schema}.source_status_{version}(e.source_seq, e.satisfied) s) e
                 ORDER BY e.o, e.place) x
         WHERE x.cancels - x.is_cancel::int = 0;
        UPDATE {schema}.edge e SET satisfied = false, again = false
          FROM unnest(e_source, e_dependant, e_verdict, e_satisfied) x (source, dependant, verdict, satisfied)
         WHERE x.verdict = 'wait' AND x.satisfied AND e.source_seq = x.source AND e.dependant_seq = x.dependant;
        UPDATE {schema}.dependant p SET pending = p.pending + x.count
          FROM (SELECT x.dependant, count(*)::int AS count
                  FROM unnest(e_dependant, e_verdict, e_satisfied) x (dependant, verdict, satisfied)
                 WHERE x.verdict = 'wait' AND x.satisfied GROUP BY x.dependant) x
         WHERE p.seq = x.dependant;
        UPDATE {schema}.edge e SET again = false WHERE e.dependant_seq = ANY (dependants) AND e.again;
        dependants := NULL;
      ELSE
        SELECT array_agg(x.source_seq), array_agg(x.dependant_seq), array_agg(x.rule), array_agg(x.satisfied),
               array_agg(x.source), array_agg(x.status),
               array_agg({schema}.verdict_{version}(x.rule, x.status, x.failing)), array_agg(x.o::int), count(*)
          INTO e_source, e_dependant, e_rule, e_satisfied, e_text, e_status, e_verdict, e_order, size
          FROM (SELECT e.*, q.o, coalesce(q.state, s.status) AS status, coalesce(s.failing, false) AS failing
                  FROM unnest(q_source, q_reached, q_state) WITH ORDINALITY q (source, reached, state, o)
                 CROSS JOIN LATERAL (
                   SELECT * FROM {schema}.edge e WHERE e.source_seq = q.source AND e.dependant_seq > q.reached
                    ORDER BY e.source_seq, e.dependant_seq LIMIT budget) e
                  LEFT JOIN LATERAL (SELECT * FROM {schema}.source_status_{version}(e.source_seq, e.satisfied)
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
         CROSS JOIN LATERAL (SELECT FROM {schema}.delayed d
                              WHERE d.namespace_id = ns AND d.due_at = {held_at} AND d.seq = x.dependant OFFSET 0) d;
        IF wanted IS NOT NULL THEN
          SELECT * INTO part FROM {schema}.end_queued_{version}(ns, now_at, wanted, reasons);
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
        UPDATE {schema}.edge e SET satisfied = true
          FROM unnest(e_source, e_dependant, e_verdict, e_satisfied) x (source, dependant, verdict, satisfied)
         WHERE x.verdict = 'satisfy' AND NOT x.satisfied AND e.source_seq = x.source
           AND e.dependant_seq = x.dependant;
        UPDATE {schema}.dependant p SET pending = p.pending - x.count
          FROM (SELECT x.dependant, count(*)::int AS count
                  FROM unnest(e_dependant, e_verdict, e_satisfied) x (dependant, verdict, satisfied)
                 WHERE x.verdict = 'satisfy' AND NOT x.satisfied GROUP BY x.dependant) x
         WHERE p.seq = x.dependant;
        wanted := ARRAY(
          SELECT x.dependant
            FROM (SELECT x.dependant, max(x.o) AS o
                    FROM unnest(e_dependant, e_verdict) WITH ORDINALITY x (dependant, verdict, o)
                   WHERE x.verdict = 'satisfy' GROUP BY x.dependant) x
           CROSS JOIN LATERAL (SELECT FROM {schema}.dependant p WHERE p.seq = x.dependant AND p.pending = 0 OFFSET 0) p
           CROSS JOIN LATERAL (SELECT FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = {held_at}
                                  AND d.seq = x.dependant OFFSET 0) d
           ORDER BY x.o);
        IF wanted <> '{}' THEN
          SELECT * INTO part FROM {schema}.release_{version}(ns, now_at, alone, wanted, s_task, s_tenant, s_step);
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
          LEFT JOIN LATERAL (SELECT true AS held FROM {schema}.delayed d WHERE d.namespace_id = ns
                                AND d.due_at = {held_at} AND d.seq = x.dependant OFFSET 0) h ON true
          LEFT JOIN LATERAL (SELECT true AS leased FROM {schema}.lease l WHERE l.seq = x.dependant OFFSET 0) l ON true
          LEFT JOIN LATERAL (SELECT o.state, o.reason FROM {schema}.outcome o WHERE o.seq = x.dependant OFFSET 0) o
                 ON true
         WHERE x.verdict = 'wait' AND x.status = 'live' ORDER BY x.o
      LOOP
        CONTINUE WHEN again.dependant = ANY (redo);
        IF again.satisfied AND again.held THEN
          UPDATE {schema}.edge e SET satisfied = false
           WHERE e.source_seq = again.source AND e.dependant_seq = again.dependant;
          UPDATE {schema}.dependant p SET pending = p.pending + 1 WHERE p.seq = again.dependant;
        ELSIF again.satisfied AND again.rule IN ('on_failure', 'on_done') AND again.leased THEN
          -- The mark makes the end of the callback's lease come here.
          UPDATE {schema}.lease l SET awaited = true WHERE l.ctid = ANY (ARRAY(
            SELECT l.ctid FROM {schema}.lease l WHERE l.seq = again.dependant FOR UPDATE SKIP LOCKED));
          IF FOUND THEN
            UPDATE {schema}.job j SET awaited = true WHERE j.seq = again.dependant AND j.awaited IS NOT TRUE;
            UPDATE {schema}.edge e SET again = true
             WHERE e.source_seq = again.source AND e.dependant_seq = again.dependant;
          ELSE
            left_source := left_source || again.source;
            left_at := left_at || (again.dependant - 1);
          END IF;
        ELSIF again.satisfied AND again.rule IN ('on_failure', 'on_done') THEN
          redo := redo || again.dependant;
          redo_for := redo_for || again.source;
        ELSIF again.state = 'cancelled' AND again.reason = 'upstream ' || again.text THEN
          SELECT e.source INTO other FROM {schema}.edge e
           CROSS JOIN LATERAL {schema}.source_status_{version}(e.source_seq, e.satisfied) s
           WHERE e.dependant_seq = again.dependant
             AND {schema}.verdict_{version}(e.rule, s.status, s.failing) = 'cancel' ORDER BY e.place LIMIT 1;
          IF FOUND THEN
            UPDATE {schema}.outcome o SET reason = 'upstream ' || other WHERE o.seq = again.dependant;
            told := told || (SELECT j.job_id FROM {schema}.job j WHERE j.seq = again.dependant);
          ELSE
            redo := redo || again.dependant;
            redo_for := redo_for || again.source;
          END IF;
        END IF;
      END LOOP;
    END LOOP;

    WHILE cardinality(u_batch) > 0 AND budget > 0 LOOP
      SELECT * INTO part FROM {schema}.cancel_members_{version}(ns, now_at, u_batch[1], u_reached[1], budget);
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
    SELECT * INTO part FROM {schema}.count_batches_{version}(now_at, c_batch, c_kind, c_count);
    c_batch := part.c_batch;
    c_kind := part.c_kind;
    c_count := part.c_count;
    IF part.reopened IS NOT NULL THEN
      DELETE FROM {schema}.unsettled u WHERE u.namespace_id = ns AND u.members AND u.source_seq = ANY (part.reopened);
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
    INSERT INTO {schema}.unsettled (namespace_id, source_seq, members, reached)
    SELECT ns, x.source, false, x.reached FROM unnest(q_source || left_source, q_reached || left_at) x (source, reached)
    UNION ALL
    SELECT ns, x.batch, true, x.reached FROM unnest(u_batch || left_batch, u_reached || left_member) x (batch, reached);
    remains := EXISTS (SELECT FROM {schema}.unsettled u WHERE u.namespace_id = ns);
  END IF;
  kinds := ARRAY['unheld', 'cancelled'];
  counts := ARRAY[released, cancelled];
END $$;
