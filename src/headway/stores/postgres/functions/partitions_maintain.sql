-- partitions_maintain: make the tables that the next days' completed jobs will lie in, and drop those of old days whose
-- jobs are all forgotten.
-- plan    jobs are forgotten by their numbers, upwards: if any of a day is left, its last one is
-- holds   one session at a time does this; if a table is in use for longer than a moment, it is left for the next time.
--         It runs with the rights of the migrating role, since a worker's role may not make tables. It names
--         every object with its schema and touches only tables of days
CREATE OR REPLACE FUNCTION {schema}.partitions_maintain_{version}(at bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  today bigint := coalesce(at, {schema}.raw_ms_{version}()) / 86400000;
  name text;
  filled boolean;
BEGIN
  IF NOT pg_try_advisory_xact_lock({days}, 0) THEN
    RETURN;
  END IF;
  PERFORM set_config('lock_timeout', '200ms', true);
  FOR day IN today .. today + 2 LOOP
    name := 'outcome_' || to_char(to_timestamp(day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD');
    CONTINUE WHEN to_regclass('{schema}.' || name) IS NOT NULL;
    BEGIN
      EXECUTE format('CREATE TABLE {schema}.%I PARTITION OF {schema}.outcome_completed FOR VALUES FROM (%s) TO (%s)',
                     name, day * 86400000::bigint, (day + 1) * 86400000::bigint);
    EXCEPTION
      -- Jobs of that day lie in the table for any day already, or it is in use.
      WHEN check_violation OR lock_not_available OR duplicate_table THEN NULL;
    END;
  END LOOP;
  FOR name IN
    SELECT c.relname FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = '{schema}.outcome_completed'::regclass AND c.relname ~ '^outcome_[0-9]{8}$'
       AND c.relname < 'outcome_' || to_char(to_timestamp((today - 1) * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD')
     ORDER BY c.relname
  LOOP
    EXECUTE format(
      'SELECT EXISTS (SELECT FROM {schema}.%I o JOIN {schema}.job j ON j.seq = o.seq ORDER BY o.seq DESC LIMIT 1)',
      name) INTO filled;
    CONTINUE WHEN filled;
    BEGIN
      EXECUTE format('DROP TABLE {schema}.%I', name);
    EXCEPTION
      WHEN lock_not_available THEN NULL;
    END;
  END LOOP;
END $$;
