-- rung_room: how many more jobs of a rung may start, as core's ladder.room computes it.
-- takes   the running jobs and the limit of each rung, shortest first; no limit is NULL
CREATE OR REPLACE FUNCTION {schema}.rung_room_{version}(counts int[], limits int[], rung int) RETURNS int
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  above int := 0;
  room int := 2147483647;
BEGIN
  FOR i IN REVERSE cardinality(counts) .. 1 LOOP
    above := above + counts[i];
    IF i <= rung THEN
      room := least(room, limits[i] - above);  -- The least of a number and NULL is the number.
    END IF;
  END LOOP;
  RETURN greatest(0, room);
END $$;
