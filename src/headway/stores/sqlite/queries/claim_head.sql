-- claim_head: the line of a class from some place on, with all that a lease tells its worker.
-- params  class_id, park, order_key, seq, count
-- gives   rows in order
-- use waiting
 WHERE r.class_id = :class_id AND r.park = :park AND (r.order_key, r.seq) > (:order_key, :seq)
 ORDER BY r.order_key, r.seq LIMIT :count;
