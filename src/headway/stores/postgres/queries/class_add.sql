-- class_add: make a class known.
-- params  namespace_id, lane, rung, needs, persist
INSERT INTO {schema}.class (namespace_id, lane, rung, needs, persist) VALUES (:namespace_id, :lane, :rung, :needs, :persist)
    ON CONFLICT (namespace_id, lane, rung, needs, persist) DO UPDATE SET persist = excluded.persist RETURNING class_id;
