-- cancel_members: cancel the next members of a cancelled batch that wait, and ask for those that run to be stopped.
-- gives   how many members it looked at, the last of them, the one before the first that another session is moving, and
--         as end_queued what it has cancelled
-- holds   it never waits: a member that another session is starting or ending is left out
CREATE OR REPLACE FUNCTION {schema}.cancel_members_{version}(
  ns int, now_at bigint, batch bigint, beyond bigint, most int,
  OUT size int, OUT reached bigint, OUT missed bigint, OUT e_seq bigint[], OUT e_awaited bigint[], OUT e_id text[],
  OUT c_batch bigint[], OUT c_kind text[], OUT c_count int[])
LANGUAGE plpgsql AS $$
DECLARE
  members bigint[];
  reasons text[];
  workers text[];
BEGIN
  SELECT array_agg(x.seq), array_agg('batch ' || x.batch_id), count(*), max(x.seq) INTO members, reasons, size, reached
    FROM (SELECT j.seq, b.batch_id FROM {schema}.batch b JOIN {schema}.job j ON j.batch_seq = b.seq
           WHERE b.seq = batch AND j.seq > beyond ORDER BY j.batch_seq, j.seq LIMIT most) x;
  IF size = 0 THEN
    RETURN;
  END IF;
  SELECT e.e_seq, e.e_awaited, e.e_id, e.c_batch, e.c_kind, e.c_count
    INTO e_seq, e_awaited, e_id, c_batch, c_kind, c_count
    FROM {schema}.end_queued_{version}(ns, now_at, members, reasons) e;
  WITH asked AS (
    UPDATE {schema}.lease l SET cancel_at = now_at WHERE l.seq = ANY (ARRAY(
      SELECT l.seq FROM {schema}.lease l WHERE l.seq = ANY (members) AND l.cancel_at IS NULL FOR UPDATE SKIP LOCKED))
    RETURNING l.seq, l.worker_id)
  SELECT e_id || array_agg(j.job_id), array_agg(DISTINCT a.worker_id) INTO e_id, workers
    FROM asked a JOIN {schema}.job j ON j.seq = a.seq;
  PERFORM {schema}.notify_{version}(ns, 'k', w.worker_id) FROM unnest(workers) w (worker_id);
  SELECT min(m.seq) - 1 INTO missed FROM unnest(members) m (seq)
   WHERE m.seq <> ALL (coalesce(e_seq, '{}'))
     AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.seq = m.seq AND l.cancel_at IS NOT NULL)
     AND NOT EXISTS (SELECT FROM {schema}.outcome o WHERE o.seq = m.seq);
END $$;
