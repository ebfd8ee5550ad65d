-- source_status: the state of the source of an edge: live, completed or failed, and whether it is a batch that is
-- failing.
-- takes   whether the edge is satisfied: of a source that was pruned, nothing else tells how it ended. It is then
--         such that the verdict is the same again
CREATE OR REPLACE FUNCTION {schema}.source_status_{version}(source bigint, satisfied boolean, OUT status text,
                                                            OUT failing boolean)
LANGUAGE plpgsql STABLE AS $$
BEGIN
  SELECT CASE WHEN b.finished_at IS NULL THEN 'live' WHEN b.failed + b.cancelled = 0 THEN 'completed' ELSE 'failed' END,
         b.failing INTO status, failing FROM {schema}.batch b WHERE b.seq = source;
  IF FOUND THEN
    RETURN;
  END IF;
  failing := false;
  SELECT CASE WHEN o.state = 'completed' THEN 'completed' ELSE 'failed' END INTO status
    FROM {schema}.outcome o WHERE o.seq = source;
  IF NOT FOUND AND EXISTS (SELECT FROM {schema}.job j WHERE j.seq = source) THEN
    status := 'live';
  ELSIF status IS NULL THEN
    status := CASE WHEN satisfied THEN 'completed' ELSE 'failed' END;
    failing := satisfied;
  END IF;
END $$;
