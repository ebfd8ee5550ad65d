-- class_clock: move the clock of a class that tenants share to the highest key taken.
-- params  order_key, class_id
UPDATE class SET clock = max(clock, :order_key) WHERE class_id = :class_id;
