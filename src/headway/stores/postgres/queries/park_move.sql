-- park_move: move a waiting job to a park.
-- params  to, now_at, class_id, park, order_key, seq
WITH placed AS (UPDATE {schema}.job SET park = :to WHERE seq = :seq)
UPDATE {schema}.ready SET park = :to, parked_at = coalesce(parked_at, :now_at)
 WHERE class_id = :class_id AND park = :park AND order_key = :order_key AND seq = :seq;
