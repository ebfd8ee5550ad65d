-- notify_jobs: tell every watcher which jobs have changed, if there is one.
-- holds   nothing is sent without watchers: a transaction that notifies keeps others from committing beside it
CREATE OR REPLACE FUNCTION {schema}.notify_jobs_{version}(ns int, job_ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  message text;
BEGIN
  IF NOT EXISTS (SELECT FROM {schema}.watcher w WHERE w.namespace_id = ns
                    AND w.until_at > {schema}.raw_ms_{version}()) THEN
    RETURN;
  END IF;
  FOR place IN 1 .. coalesce(cardinality(job_ids), 0) BY 200 LOOP
    message := 'j' || array_to_string(job_ids[place:place + 199], ',');
    PERFORM pg_notify(n.channel, CASE WHEN octet_length(message) < 7990 THEN message ELSE 'j' END)
       FROM {schema}.namespace n WHERE n.namespace_id = ns;
  END LOOP;
END $$;
