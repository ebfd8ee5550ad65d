-- wake: wake a waiting worker for each job that became eligible, as far as one can serve it; never the one that asks.
-- holds   at most one worker a job, the one that has waited longest; nothing is sent while no worker waits
CREATE OR REPLACE FUNCTION {schema}.wake_{version}(ns int, at bigint, classes int[], but text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  class int;
  chosen text;
  woken text[] := '{}';
  served_out int[] := '{}';
BEGIN
  -- A worker that begins to wait now does so after this is committed, and sees it; one that waits already is seen here.
  PERFORM pg_advisory_xact_lock_shared({gate}, ns);
  IF NOT EXISTS (SELECT FROM {schema}.worker w WHERE w.namespace_id = ns AND w.waiting IS NOT NULL) THEN
    RETURN;
  END IF;
  FOREACH class IN ARRAY coalesce(classes, '{}') LOOP
    CONTINUE WHEN class = ANY (served_out);
    SELECT w.worker_id INTO chosen FROM {schema}.worker w JOIN {schema}.class k ON k.class_id = class
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
      PERFORM {schema}.notify_{version}(ns, 'w', chosen);
    END IF;
  END LOOP;
  -- A row that its worker or its keeper has locked just now is left as it is: one more wake-up does no harm.
  UPDATE {schema}.worker SET waiting = NULL WHERE worker_id IN
    (SELECT w.worker_id FROM {schema}.worker w WHERE w.worker_id = ANY (woken) FOR NO KEY UPDATE SKIP LOCKED);
END $$;
