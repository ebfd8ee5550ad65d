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

-- part: line_heads
-- Each class with the first place of its line. Rows of tenant_line before it are of jobs that have left.
SELECT c.class_id, c.namespace_id, c.lane, c.fair,
       (SELECT h.order_key FROM ready h WHERE h.class_id = c.class_id AND h.park = ''
         ORDER BY h.order_key, h.seq LIMIT 1) AS head_key,
       (SELECT h.seq FROM ready h WHERE h.class_id = c.class_id AND h.park = ''
         ORDER BY h.order_key, h.seq LIMIT 1) AS head_seq
  FROM class c

-- part: tenant_waiting
-- The jobs of the tenant f.tenant that wait in the class f.class_id, in its line or blocked.
SELECT t.order_key, t.seq, r.eligible_at, r.park FROM tenant_line t
 CROSS JOIN ready r ON r.class_id = t.class_id AND r.park = '' AND r.order_key = t.order_key AND r.seq = t.seq
 WHERE t.class_id = f.class_id AND t.tenant = f.tenant AND (t.order_key, t.seq) >= (f.head_key, f.head_seq)
 UNION ALL
SELECT b.order_key, b.seq, b.eligible_at, b.park FROM ready b INDEXED BY ready_blocked
 WHERE b.class_id = f.class_id AND b.tenant = f.tenant AND b.tenant IS NOT NULL AND b.park <> ''

-- name: last_waiting_key
-- The highest key of a tenant's jobs that wait in a class.
-- params  class_id, tenant, head_key, head_seq
SELECT order_key FROM (
  SELECT t.order_key FROM tenant_line t
   WHERE t.class_id = :class_id AND t.tenant = :tenant AND (t.order_key, t.seq) >= (:head_key, :head_seq)
     AND EXISTS (SELECT 1 FROM ready r WHERE r.class_id = :class_id AND r.park = ''
                    AND r.order_key = t.order_key AND r.seq = t.seq)
   UNION ALL
  SELECT b.order_key FROM ready b INDEXED BY ready_blocked
   WHERE b.class_id = :class_id AND b.tenant = :tenant AND b.tenant IS NOT NULL AND b.park <> '')
 ORDER BY order_key DESC LIMIT 1;

-- name: line_leave
-- Remove a job from its tenant's line.
-- params  class_id, tenant, order_key, seq
DELETE FROM tenant_line WHERE class_id = :class_id AND tenant = :tenant AND order_key = :order_key AND seq = :seq;

-- name: line_clear
-- Remove the rows of tenants' jobs that have left an empty line.
-- params  class_id, limit
DELETE FROM tenant_line WHERE (class_id, tenant, order_key, seq) IN
  (SELECT class_id, tenant, order_key, seq FROM tenant_line
    WHERE class_id = :class_id AND NOT EXISTS (SELECT 1 FROM ready WHERE class_id = :class_id AND park = '')
    LIMIT :limit);

-- name: line_head
-- The first place of the line of a class.
-- params  class_id
SELECT order_key, seq FROM ready WHERE class_id = :class_id AND park = '' ORDER BY order_key, seq LIMIT 1;

-- name: line_sweep
-- Remove the rows of these tenants' jobs that have left the line.
-- params  class_id, tenants
DELETE FROM tenant_line WHERE class_id = :class_id AND tenant IN (SELECT value FROM json_each(:tenants))
   AND (order_key, seq) < (SELECT order_key, seq FROM ready WHERE class_id = :class_id AND park = ''
                            ORDER BY order_key, seq LIMIT 1);

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
