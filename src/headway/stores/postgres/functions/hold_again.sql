-- hold_again: hold a job that has ended or was released as if it were new.
-- gives   whether that was done: false if another session is moving the job, nothing if another job uses its unique
--         key; how the job had ended, and its marks
CREATE OR REPLACE FUNCTION {schema}.hold_again_{version}(
  ns int, dependant bigint, OUT done boolean, OUT was text, OUT id text, OUT batch bigint, OUT marked boolean)
LANGUAGE plpgsql AS $$
DECLARE
  job record;
  kept_epoch int;
  left_park text := '';
BEGIN
  SELECT * INTO job FROM {schema}.job j WHERE j.seq = dependant;
  id := job.job_id;
  batch := job.batch_seq;
  marked := job.awaited;
  done := false;
  SELECT o.state, o.epoch INTO was, kept_epoch FROM {schema}.outcome o WHERE o.seq = dependant FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    IF job.unique_key IS NOT NULL THEN
      IF EXISTS (SELECT FROM {schema}.unique_key u WHERE u.namespace_id = ns AND u.unique_key = job.unique_key) THEN
        done := NULL;
        RETURN;
      END IF;
      INSERT INTO {schema}.unique_key (namespace_id, unique_key, job_id) VALUES (ns, job.unique_key, job.job_id);
    END IF;
    DELETE FROM {schema}.outcome o WHERE o.seq = dependant;
  ELSE
    DELETE FROM {schema}.ready r WHERE r.ctid = ANY (ARRAY(
      SELECT r.ctid FROM {schema}.ready r WHERE r.class_id = job.class_id AND r.park = job.park
         AND r.order_key = job.order_key AND r.seq = dependant FOR UPDATE SKIP LOCKED))
    RETURNING r.epoch, r.park INTO kept_epoch, left_park;
    IF NOT FOUND THEN
      DELETE FROM {schema}.delayed d WHERE d.ctid = ANY (ARRAY(
        SELECT d.ctid FROM {schema}.delayed d WHERE d.namespace_id = ns AND d.due_at = job.due_at AND d.seq = dependant
           FOR UPDATE SKIP LOCKED))
      RETURNING d.epoch INTO kept_epoch;
      IF NOT FOUND THEN
        RETURN;
      END IF;
    END IF;
  END IF;
  IF left_park <> '' THEN
    WITH h AS (SELECT r.order_key, r.seq FROM {schema}.ready r WHERE r.class_id = job.class_id AND r.park = left_park
                ORDER BY r.class_id, r.park, r.order_key, r.seq LIMIT 1),
    m AS (UPDATE {schema}.park p SET head_key = h.order_key, head_seq = h.seq FROM h
           WHERE p.namespace_id = ns AND p.park = left_park AND p.class_id = job.class_id)
    DELETE FROM {schema}.park p WHERE p.namespace_id = ns AND p.park = left_park AND p.class_id = job.class_id
       AND NOT EXISTS (SELECT FROM h);
  END IF;
  DELETE FROM {schema}.step s WHERE s.seq = dependant;
  UPDATE {schema}.job j SET due_at = {held_at}, order_key = NULL, park = '', expires_at = NULL WHERE j.seq = dependant;
  INSERT INTO {schema}.delayed (due_at, seq, namespace_id, class_id, epoch)
  VALUES ({held_at}, dependant, ns, job.class_id, kept_epoch);
  done := true;
END $$;
