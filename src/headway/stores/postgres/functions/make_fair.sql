-- make_fair: let tenants share a class from now on; what waits or runs there already is one tenant's.
-- gives   its clock, which begins at the first job that waits, or at the number given
CREATE OR REPLACE FUNCTION {schema}.make_fair_{version}(class int, number bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  found_clock bigint;
BEGIN
  SELECT c.clock INTO found_clock FROM {schema}.class c WHERE c.class_id = class AND c.fair FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    UPDATE {schema}.ready SET tenant = '' WHERE class_id = class AND tenant IS NULL;
    UPDATE {schema}.lease SET tenant = '' WHERE class_id = class AND tenant IS NULL;
    UPDATE {schema}.class c SET fair = true,
           clock = coalesce((SELECT r.order_key FROM {schema}.ready r WHERE r.class_id = class AND r.park = ''
                              ORDER BY r.order_key LIMIT 1), number)
     WHERE c.class_id = class RETURNING c.clock INTO found_clock;
  END IF;
  RETURN found_clock;
END $$;
