-- fair_leases: what runs already of a class that becomes shared is one tenant's.
-- params  class_id
UPDATE lease SET tenant = '' WHERE class_id = :class_id AND tenant IS NULL;
