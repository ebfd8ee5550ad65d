-- hold_again: hold an ended job as if it were new, since a source of it is live again.
-- gives   false, with nothing done, if another session is moving the job
-- takes   the edge from that source, and whether it is satisfied
CREATE OR REPLACE FUNCTION {schema}.hold_again_{version}(
  ns int, from_seq bigint, to_seq bigint, was_satisfied boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  kept record;
BEGIN
  SELECT o.epoch INTO kept FROM {schema}.outcome o WHERE o.seq = to_seq FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  DELETE FROM {schema}.outcome o WHERE o.seq = to_seq;
  WITH j AS (
    UPDATE {schema}.job j SET due_at = {held_at}, order_key = NULL, park = '', expires_at = NULL
     WHERE j.seq = to_seq RETURNING j.*),
  u AS (
    INSERT INTO {schema}.unique_key (namespace_id, unique_key, job_id)
    SELECT ns, j.unique_key, j.job_id FROM j WHERE j.unique_key IS NOT NULL)
  INSERT INTO {schema}.delayed (due_at, seq, namespace_id, class_id, epoch)
  SELECT {held_at}, j.seq, ns, j.class_id, kept.epoch FROM j;
  IF was_satisfied THEN
    UPDATE {schema}.edge e SET satisfied = false WHERE e.source_seq = from_seq AND e.dependant_seq = to_seq;
    UPDATE {schema}.dependant p SET pending = p.pending + 1 WHERE p.seq = to_seq;
  END IF;
  RETURN true;
END $$;
