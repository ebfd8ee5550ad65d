-- transaction: begin a transaction, and notify workers and watchers of what it changed.

-- name: class_add
-- Make a class known.
-- params  namespace_id, lane, rung, needs, persist
INSERT INTO {schema}.class (namespace_id, lane, rung, needs, persist)
VALUES (:namespace_id, :lane, :rung, :needs, :persist)
    ON CONFLICT (namespace_id, lane, rung, needs, persist) DO UPDATE SET persist = excluded.persist RETURNING class_id;

-- name: classes
-- The classes of a namespace.
-- params  namespace_id
SELECT class_id, lane, rung, needs, persist FROM {schema}.class WHERE namespace_id = :namespace_id;
