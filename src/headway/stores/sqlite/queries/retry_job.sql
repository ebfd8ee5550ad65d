-- retry_job: put a job that ended back into the queue; it no longer expires.
-- params  class_id, order_key, seq
UPDATE job SET class_id = :class_id, order_key = :order_key, due_at = NULL, expires_at = NULL WHERE seq = :seq;
