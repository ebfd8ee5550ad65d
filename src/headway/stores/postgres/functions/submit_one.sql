-- submit_one: keep one plain job of a class that is known, and wake who can run it.
-- gives   false, with nothing done, if the job is known or tenants share its class: that goes the long way
-- holds   an id that becomes known at the same moment is refused by the unique index, and then goes the long way too;
--         the gate is held before waiting workers are looked for: one that begins to wait later sees the job
-- cost    a statement for each table, and the tally updated before it is inserted: about 150 µs without the flush to
--         disk, against 190 as one statement with several WITH clauses; a bare INSERT into one table took 55 to 75
CREATE OR REPLACE FUNCTION {schema}.submit_one_{version}(
  ns int, at bigint, class int, id text, task text, payload bytea, timeout bigint, most int, retry text, trace text,
  limits text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  now_at bigint := {schema}.now_ms_{version}(at);
  held text := pg_advisory_xact_lock_shared({gate}, ns);
  number bigint;
  unfit boolean;
  awaited boolean;
  watched boolean;
BEGIN
  SELECT c.fair OR EXISTS (SELECT FROM {schema}.job j WHERE j.job_id = id AND j.namespace_id = ns),
         EXISTS (SELECT FROM {schema}.worker w WHERE w.namespace_id = ns AND w.waiting IS NOT NULL),
         EXISTS (SELECT FROM {schema}.watcher w WHERE w.namespace_id = ns)
    INTO unfit, awaited, watched FROM {schema}.class c WHERE c.class_id = class;
  IF unfit IS NOT FALSE THEN
    RETURN false;
  END IF;
  number := nextval('{schema}.sequence');
  INSERT INTO {schema}.job (seq, namespace_id, class_id, order_key, submitted_at, timeout_ms, max_retries, job_id, task,
                            trace_id, retry, limits, payload)
  VALUES (number, ns, class, number, now_at, timeout, most, id, task, trace, retry, limits, payload);
  INSERT INTO {schema}.ready (order_key, seq, eligible_at, class_id) VALUES (number, number, now_at, class);
  UPDATE {schema}.tally t SET count = t.count + 1
   WHERE t.namespace_id = ns AND t.minute = now_at / 60000 AND t.what = 'submitted'
     AND t.shard = pg_backend_pid() % 32 + 32 * (now_at / 10000 % 6);
  IF NOT FOUND THEN
    PERFORM {schema}.count_up_{version}(ns, now_at, ARRAY['submitted'], ARRAY[1]::bigint[], false);
  END IF;
  IF awaited THEN
    PERFORM {schema}.wake_{version}(ns, now_at, ARRAY[class], NULL);
  END IF;
  IF watched THEN
    PERFORM {schema}.notify_jobs_{version}(ns, ARRAY[id]);
  END IF;
  RETURN true;
END $$;
