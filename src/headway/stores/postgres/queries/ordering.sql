-- ordering: place jobs in the order in which they run.

-- name: class_rewind
-- A job was put before those that were taken already: claims look from the beginning.
-- params  class_id
UPDATE {schema}.class SET rewound = rewound + 1 WHERE class_id = :class_id;

-- name: last_key
-- The highest key of a tenant's jobs that wait or run in a class.
-- params  class_id, tenant
SELECT {schema}.last_key_{version}(:class_id, :tenant);

-- name: make_fair
-- Let tenants share a class from now on.
-- params  class_id, number
SELECT {schema}.make_fair_{version}(:class_id, :number);

-- name: next_sequence
-- Take the next numbers of the one sequence that orders everything.
-- params  count
-- gives   the numbers, in order
SELECT nextval('{schema}.sequence') FROM generate_series(1, :count::int);

-- name: ready_again
-- Make a job eligible that ran, ended or was delayed before, and note where it is.
-- params  class_id, order_key, seq, eligible_at, expires_at, unique_key, epoch, attempts, crashes, timeout_ms, token,
--         error, reason, tenant
WITH placed AS (UPDATE {schema}.job SET class_id = :class_id, park = '', order_key = :order_key, due_at = NULL
                 WHERE seq = :seq RETURNING batch_seq, awaited)
INSERT INTO {schema}.ready (class_id, order_key, seq, eligible_at, expires_at, unique_key, epoch, attempts, crashes,
                            timeout_ms, token, error, reason, tenant, batch_seq, awaited)
SELECT :class_id, :order_key, :seq, :eligible_at::bigint, :expires_at::bigint, :unique_key::text, :epoch::int,
       :attempts::int, :crashes::int, :timeout_ms::bigint, :token::bytea, :error::text, :reason::text, :tenant::text,
       placed.batch_seq, placed.awaited
  FROM placed;
