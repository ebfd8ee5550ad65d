-- submit_within: keep one plain job of a class that is known in a caller's transaction, and wake every worker once it
-- is committed.
-- gives   false, with nothing done, if the job is known or tenants share its class: that goes the long way
-- holds   no other session waits for the caller: no gate is held, and the row of the tally is its session's own
-- cost    a function, since drivers that put the values into the text have every statement planned anew
CREATE OR REPLACE FUNCTION {schema}.submit_within_{version}(
  ns int, at bigint, class int, id text, task text, payload bytea, timeout bigint, most int, retry text, trace text,
  limits text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  now_at bigint := {schema}.now_ms_{version}(at);
  number bigint;
  unfit boolean;
  watched boolean;
BEGIN
  SELECT c.fair OR EXISTS (SELECT FROM {schema}.job j WHERE j.job_id = id AND j.namespace_id = ns),
         EXISTS (SELECT FROM {schema}.watcher w WHERE w.namespace_id = ns)
    INTO unfit, watched FROM {schema}.class c WHERE c.class_id = class;
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
     AND t.shard = 1000 + pg_backend_pid();
  IF NOT FOUND THEN
    PERFORM {schema}.count_up_{version}(ns, now_at, ARRAY['submitted'], ARRAY[1]::bigint[], true);
  END IF;
  PERFORM pg_notify(n.channel, '*') FROM {schema}.namespace n WHERE n.namespace_id = ns;
  IF watched THEN
    PERFORM {schema}.notify_jobs_{version}(ns, ARRAY[id]);
  END IF;
  RETURN true;
END $$;
