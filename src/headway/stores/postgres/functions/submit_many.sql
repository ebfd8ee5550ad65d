-- submit_many: the same for a batch. A value that all jobs have in common is given once, and its column is NULL.
-- gives   false, with nothing done, if one of the jobs is known or tenants share one of the classes
-- holds   as submit_one; numbers are given in the order of the batch
-- takes   ids as lines of one text: of an array, the driver would ask for each of them whether it is an array itself
-- cost    store and caller spend 12 to 14 µs a job, 18 to 23 the long way. COPY into a table of the session's and from
--         there takes as long (15 to 17 µs for either), without a look at known ids, and is not one call. That look is
--         6 % of it; without, a batch that comes again would use up numbers before the index refuses it. One statement
--         that hands what it inserted to the next costs 8 % more
CREATE OR REPLACE FUNCTION {schema}.submit_many_{version}(
  ns int, at bigint, classes int[], g_class int, g_task text, g_timeout bigint, g_most int,
  ids text, payloads bytea[], groups int[], tasks text[], timeouts bigint[], retries int[], retry text[], traces text[],
  limits text[])
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  now_at bigint := {schema}.now_ms_{version}(at);
  all_ids text[] := string_to_array(ids, E'\n');
  numbers bigint[];
  awaited boolean;
  watched boolean;
BEGIN
  IF EXISTS (SELECT FROM {schema}.class c WHERE c.class_id = ANY (classes) AND c.fair)
     OR EXISTS (SELECT FROM {schema}.job j WHERE j.job_id = ANY (all_ids) AND j.namespace_id = ns) THEN
    RETURN false;
  END IF;
  numbers := ARRAY(SELECT nextval('{schema}.sequence') FROM generate_series(1, cardinality(payloads)));
  INSERT INTO {schema}.job (seq, namespace_id, class_id, order_key, submitted_at, timeout_ms, max_retries, job_id, task,
                            trace_id, retry, limits, payload)
  SELECT x.n, ns, coalesce(x.class, g_class), x.n, now_at, coalesce(x.timeout, g_timeout), coalesce(x.most, g_most),
         x.id, coalesce(x.task, g_task), x.trace, x.retry, x.limits, x.payload
    FROM unnest(numbers, all_ids, payloads, groups, tasks, timeouts, retries, retry, traces, limits)
         x (n, id, payload, class, task, timeout, most, retry, trace, limits);
  INSERT INTO {schema}.ready (order_key, seq, eligible_at, class_id)
  SELECT x.n, x.n, now_at, coalesce(x.class, g_class) FROM unnest(numbers, groups) x (n, class);
  INSERT INTO {schema}.tally AS t (namespace_id, minute, shard, what, count)
  VALUES (ns, now_at / 60000, pg_backend_pid() % 32 + 32 * (now_at / 10000 % 6), 'submitted', cardinality(payloads))
      ON CONFLICT (namespace_id, minute, what, shard) DO UPDATE SET count = t.count + excluded.count;
  PERFORM pg_advisory_xact_lock_shared({gate}, ns);
  SELECT EXISTS (SELECT FROM {schema}.worker w WHERE w.namespace_id = ns AND w.waiting IS NOT NULL),
         EXISTS (SELECT FROM {schema}.watcher w WHERE w.namespace_id = ns) INTO awaited, watched;
  IF awaited THEN
    PERFORM {schema}.wake_{version}(ns, now_at, coalesce(groups, array_fill(g_class, ARRAY[cardinality(payloads)])),
                                    NULL);
  END IF;
  IF watched THEN
    PERFORM {schema}.notify_jobs_{version}(ns, all_ids);
  END IF;
  RETURN true;
END $$;
