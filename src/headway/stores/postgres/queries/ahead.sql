-- ahead: how many jobs of a line go before a place, counted up to a bound.
-- params  class_id, park, order_key, seq, bound
SELECT count(*) FROM (SELECT FROM {schema}.ready WHERE class_id = :class_id AND park = :park AND (order_key, seq) < (:order_key, :seq) LIMIT :bound) x;
