-- place: note where a queued job now is.
-- params  class_id, order_key, due_at, seq
UPDATE job SET class_id = :class_id, park = '', order_key = :order_key, due_at = :due_at WHERE seq = :seq;
