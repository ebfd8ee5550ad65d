-- claim_taken: remove the front of a line that was leased.
-- params  class_id, park, order_key, seq
-- holds   one writer at a time, so what was read is still the front
DELETE FROM ready WHERE class_id = :class_id AND park = :park AND (order_key, seq) <= (:order_key, :seq);
