-- ahead_own: how many of them are one tenant's.
-- params  class_id, tenant, order_key, seq, park, bound
SELECT count(*) FROM (SELECT FROM {schema}.ready WHERE class_id = :class_id AND tenant = :tenant AND (order_key, seq) < (:order_key, :seq)
                         AND park = :park LIMIT :bound) x;
