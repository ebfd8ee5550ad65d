-- ready_new: make a job eligible that never ran.
-- params  class_id, order_key, seq, eligible_at
INSERT INTO ready (class_id, order_key, seq, eligible_at, epoch, attempts, crashes)
VALUES (:class_id, :order_key, :seq, :eligible_at, 0, 0, 0);
