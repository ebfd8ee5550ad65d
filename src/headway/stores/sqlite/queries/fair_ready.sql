-- fair_ready: what waits already in a class that becomes shared is one tenant's.
-- params  class_id
UPDATE ready SET tenant = '' WHERE class_id = :class_id AND tenant IS NULL;
