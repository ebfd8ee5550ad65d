-- class_clock: move the clock of a class that tenants share to the highest key taken.
-- params  order_key, class_id
UPDATE {schema}.class SET clock = :order_key WHERE class_id = :class_id AND clock < :order_key;
