-- release: let held jobs wait for a slot, or until their own delay has passed.
-- gives   those that were released, their ids, the classes of those that may start, and what changes in their batches
-- holds   it never waits for a held job: one that another session is moving is left out
-- takes   how far apart two jobs of a task and tenant are, for those that the caller knows; it raises HW003 for others.
--         To make a class fair it must wait for jobs that other sessions are moving. So unless the caller holds the
--         namespace alone, it raises HW006
CREATE OR REPLACE FUNCTION {schema}.release_{version}(
  ns int, now_at bigint, alone boolean, seqs bigint[], s_task text[], s_tenant text[], s_step bigint[],
  OUT f_seq bigint[], OUT f_id text[], OUT eligible int[], OUT c_batch bigint[], OUT c_kind text[], OUT c_count int[])
LANGUAGE plpgsql AS $$
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
         array_agg(CASE WHEN x.back THEN nextval('{schema}.sequence') ELSE x.seq END)
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
           CROSS JOIN LATERAL (SELECT FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = {held_at}
                                  AND d.seq = s.seq FOR UPDATE SKIP LOCKED) d
           CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = s.seq OFFSET 0) j
           CROSS JOIN LATERAL (SELECT * FROM {schema}.dependant p WHERE p.seq = s.seq OFFSET 0) p
           CROSS JOIN LATERAL (SELECT * FROM {schema}.class c WHERE c.class_id = j.class_id OFFSET 0) c
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
    UPDATE {schema}.delayed d SET due_at = x.due_at FROM unnest(delays, dues) x (seq, due_at)
     WHERE d.namespace_id = ns AND d.due_at = {held_at} AND d.seq = x.seq;
    UPDATE {schema}.job j SET due_at = x.due_at FROM unnest(delays, dues) x (seq, due_at) WHERE j.seq = x.seq;
  END IF;
  IF plain IS NOT NULL THEN
    INSERT INTO {schema}.ready (order_key, seq, eligible_at, expires_at, timeout_ms, class_id, epoch, attempts, crashes,
                                unique_key, token, error, reason, batch_seq, awaited)
    SELECT x.place, x.seq, now_at, j.expires_at, d.timeout_ms, d.class_id, d.epoch, d.attempts, d.crashes, j.unique_key,
           d.token, d.error, d.reason, j.batch_seq, j.awaited
      FROM unnest(plain, places) x (seq, place)
     CROSS JOIN LATERAL (SELECT * FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = {held_at}
                            AND d.seq = x.seq OFFSET 0) d
     CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = x.seq OFFSET 0) j;
    DELETE FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = {held_at} AND d.seq = ANY (plain);
    UPDATE {schema}.job j SET due_at = NULL, park = '', order_key = x.place FROM unnest(plain, places) x (seq, place)
     WHERE j.seq = x.seq;
    -- Their places lie before those that were taken already. A class that another session rewinds is not waited for:
    -- the next scan from the very start finds them.
    UPDATE {schema}.class c SET rewound = c.rewound + 1 WHERE c.class_id = ANY (ARRAY(
      SELECT c.class_id FROM {schema}.class c WHERE c.class_id = ANY (eligible) AND NOT c.fair
       ORDER BY c.class_id FOR NO KEY UPDATE SKIP LOCKED));
  END IF;
  IF shared THEN
    FOR job IN
      SELECT j.*, p.back, s.step, d.ctid AS spot, d.epoch, d.attempts, d.crashes, d.timeout_ms AS given_ms, d.token,
             d.error, d.reason
        FROM unnest(f_seq) WITH ORDINALITY f (seq, o)
       CROSS JOIN LATERAL (SELECT d.ctid, d.* FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = {held_at}
                              AND d.seq = f.seq OFFSET 0) d
       CROSS JOIN LATERAL (SELECT * FROM {schema}.job j WHERE j.seq = f.seq OFFSET 0) j
       CROSS JOIN LATERAL (SELECT * FROM {schema}.dependant p WHERE p.seq = f.seq OFFSET 0) p
        LEFT JOIN LATERAL (SELECT s.step FROM unnest(s_task, s_tenant, s_step) s (task, tenant, step)
                            WHERE s.task = j.task AND s.tenant = coalesce(j.tenant, '') LIMIT 1) s ON true
       ORDER BY f.o
    LOOP
      SELECT c.fair, c.clock INTO class_fair, class_clock FROM {schema}.class c WHERE c.class_id = job.class_id;
      IF NOT class_fair THEN
        IF NOT alone THEN
          RAISE EXCEPTION USING ERRCODE = 'HW006', MESSAGE = 'a class must become fair';
        END IF;
        class_clock := {schema}.make_fair_{version}(
          job.class_id, CASE WHEN job.back THEN nextval('{schema}.sequence') ELSE job.seq END);
      END IF;
      -- The order key, as core's order_key gives it.
      last := {schema}.last_key_{version}(job.class_id, coalesce(job.tenant, ''));
      place := CASE WHEN last IS NULL THEN class_clock ELSE greatest(class_clock, last + job.step) END;
      DELETE FROM {schema}.delayed d WHERE d.ctid = job.spot;
      UPDATE {schema}.job j SET due_at = NULL, park = '', order_key = place WHERE j.seq = job.seq;
      INSERT INTO {schema}.ready (order_key, seq, eligible_at, expires_at, timeout_ms, class_id, epoch, attempts,
                                  crashes, tenant, unique_key, token, error, reason, batch_seq, awaited)
      VALUES (place, job.seq, now_at, job.expires_at, job.given_ms, job.class_id, job.epoch, job.attempts, job.crashes,
              coalesce(job.tenant, ''), job.unique_key, job.token, job.error, job.reason, job.batch_seq, job.awaited);
    END LOOP;
  END IF;
END $$;
