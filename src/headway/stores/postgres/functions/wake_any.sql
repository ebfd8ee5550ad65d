-- wake_any: wake the worker that has waited longest, whatever it offers, to settle what a verb has left.
CREATE OR REPLACE FUNCTION {schema}.wake_any_{version}(ns int, at bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  chosen text;
BEGIN
  PERFORM pg_advisory_xact_lock_shared({gate}, ns);
  SELECT w.worker_id INTO chosen FROM {schema}.worker w
   WHERE w.namespace_id = ns AND w.waiting IS NOT NULL AND w.state = 'active' AND w.lease_ends_at > at
   ORDER BY w.waiting, w.worker_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE {schema}.worker w SET waiting = NULL WHERE w.worker_id = chosen;
    PERFORM {schema}.notify_{version}(ns, 'w', chosen);
  END IF;
END $$;
