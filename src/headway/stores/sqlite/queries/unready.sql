-- unready: take one job out of its class.
-- params  class_id, order_key, seq
DELETE FROM ready WHERE class_id = :class_id AND order_key = :order_key AND seq = :seq;
