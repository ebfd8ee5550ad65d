-- park_put: one more job waits for a key; there is no room, so the park is shut.
-- params  namespace_id, park, class_id, open_at, head_key, head_seq
INSERT INTO {schema}.park AS p (namespace_id, park, class_id, open, open_at, head_key, head_seq)
VALUES (:namespace_id, :park, :class_id, false, :open_at, :head_key, :head_seq)
    ON CONFLICT (namespace_id, park, class_id) DO UPDATE SET open = false, open_at = excluded.open_at,
       head_key = CASE WHEN (excluded.head_key, excluded.head_seq) < (p.head_key, p.head_seq) THEN excluded.head_key ELSE p.head_key END,
       head_seq = CASE WHEN (excluded.head_key, excluded.head_seq) < (p.head_key, p.head_seq) THEN excluded.head_seq ELSE p.head_seq END;
