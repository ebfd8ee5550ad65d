-- park_put: let one more job wait for a key; there is no room, so the park is shut.
-- params  namespace_id, park, class_id, open_at, head_key, head_seq
INSERT INTO park (namespace_id, park, class_id, open, open_at, head_key, head_seq)
VALUES (:namespace_id, :park, :class_id, 0, :open_at, :head_key, :head_seq)
    ON CONFLICT DO UPDATE SET open = 0, open_at = excluded.open_at;
