-- last_key: the highest key of a tenant's jobs that wait or run in a class; none if it has none.
CREATE OR REPLACE FUNCTION {schema}.last_key_{version}(class int, sharer text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN greatest((SELECT r.order_key FROM {schema}.ready r WHERE r.class_id = class AND r.tenant = sharer
                    ORDER BY r.order_key DESC LIMIT 1),
                  (SELECT l.order_key FROM {schema}.lease l WHERE l.class_id = class AND l.tenant = sharer
                    ORDER BY l.order_key DESC LIMIT 1));
END $$;
