-- ordering: place jobs in the order in which they run.

-- name: class_clock
-- Move the clock of a class that tenants share to the highest key taken.
-- params  order_key, class_id
UPDATE class SET clock = max(clock, :order_key) WHERE class_id = :class_id;

-- name: fair_class
-- Let tenants share a class from now on; its clock begins at the first job that waits.
-- params  class_id, number
UPDATE class SET fair = 1,
       clock = ifnull((SELECT order_key FROM ready WHERE class_id = :class_id AND park = ''
                        ORDER BY order_key LIMIT 1), :number)
 WHERE class_id = :class_id RETURNING clock;

-- name: fair_leases
-- What runs already of a class that becomes shared is one tenant's.
-- params  class_id
UPDATE lease SET tenant = '' WHERE class_id = :class_id AND tenant IS NULL;

-- name: fair_ready
-- What waits already in a class that becomes shared is one tenant's.
-- params  class_id
UPDATE ready SET tenant = '' WHERE class_id = :class_id AND tenant IS NULL;

-- name: job_set_place
-- Note where a queued job now is.
-- params  class_id, order_key, due_at, seq
UPDATE job SET class_id = :class_id, park = '', order_key = :order_key, due_at = :due_at WHERE seq = :seq;

-- name: last_running_keys
-- The highest key of each tenant's jobs that run in a class.
-- params  class_id
-- plan    reads all leases, which are as few as there are busy slots: an index would cost each job two writes
SELECT tenant, max(order_key) FROM lease WHERE class_id = :class_id AND tenant IS NOT NULL GROUP BY tenant;

-- name: last_waiting_key
-- The highest key of a tenant's jobs that wait in a class.
-- params  class_id, tenant
SELECT order_key FROM ready WHERE class_id = :class_id AND tenant = :tenant ORDER BY order_key DESC LIMIT 1;

-- name: next_sequence
-- Take the next numbers of the one sequence that orders everything.
-- params  count
-- gives   one row: the last number taken
UPDATE sequence SET last = last + :count RETURNING last;

-- name: ready_again
-- Make a job eligible that ran or was delayed before.
-- params  class_id, order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, token, error, reason, tenant
INSERT INTO ready (class_id, park, order_key, seq, eligible_at, epoch, attempts, crashes, timeout_ms, token, error,
                   reason, tenant)
VALUES (:class_id, '', :order_key, :seq, :eligible_at, :epoch, :attempts, :crashes, :timeout_ms, :token, :error,
        :reason, :tenant);
