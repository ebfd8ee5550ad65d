-- longest_rung: the longest rung with room, as core's ladder.longest chooses it; the shortest if none has.
CREATE OR REPLACE FUNCTION {schema}.longest_rung_{version}(counts int[], limits int[]) RETURNS int
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  FOR i IN REVERSE cardinality(counts) .. 2 LOOP
    IF {schema}.rung_room_{version}(counts, limits, i) > 0 THEN
      RETURN i;
    END IF;
  END LOOP;
  RETURN 1;
END $$;
