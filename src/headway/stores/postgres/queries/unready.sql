-- unready: take one job out of where it waits.
-- params  class_id, park, order_key, seq
-- gives   the job, if it was there
DELETE FROM {schema}.ready WHERE class_id = :class_id AND park = :park AND order_key = :order_key AND seq = :seq RETURNING seq;
