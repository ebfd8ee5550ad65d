-- claim_taken: remove the front of a class up to and with the last job taken.
-- params  class_id, order_key, seq
-- holds   one writer at a time, so what was read is still the front
DELETE FROM ready WHERE class_id = :class_id AND park = '' AND (order_key, seq) <= (:order_key, :seq);
