-- submit: store new jobs.

-- name: known_ids
-- Which of these job ids are already kept.
-- params  job_ids, namespace_id
SELECT job_id, task, payload FROM job WHERE job_id IN (SELECT value FROM json_each(:job_ids))
   AND namespace_id = :namespace_id;

-- name: known_key
-- The job that an idempotency key stands for, while it is remembered.
-- params  namespace_id, tenant, idempotency_key, now_at
SELECT job_id, digest FROM idempotency
 WHERE namespace_id = :namespace_id AND tenant = :tenant AND idempotency_key = :idempotency_key AND until_at > :now_at;

-- name: submit_expiry
-- Note when a queued job expires.
-- params  namespace_id, expires_at, seq
INSERT INTO expiry (namespace_id, expires_at, seq) VALUES (:namespace_id, :expires_at, :seq);

-- name: submit_job
-- Keep what never changes about a job.
-- params  seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, submitted_at, expires_at,
--         max_retries, timeout_ms, retry, idempotency_key, unique_key, limits, payload
INSERT INTO job (seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, submitted_at,
                 expires_at, max_retries, timeout_ms, retry, idempotency_key, unique_key, limits, payload)
VALUES (:seq, :job_id, :namespace_id, :class_id, :order_key, :due_at, :task, :tenant, :trace_id, :submitted_at,
        :expires_at, :max_retries, :timeout_ms, :retry, :idempotency_key, :unique_key, :limits, :payload);

-- name: submit_key
-- Remember an idempotency key; one that has run out is replaced.
-- params  namespace_id, tenant, idempotency_key, job_id, digest, until_at
INSERT OR REPLACE INTO idempotency (namespace_id, tenant, idempotency_key, job_id, digest, until_at)
VALUES (:namespace_id, :tenant, :idempotency_key, :job_id, :digest, :until_at);

-- name: submit_ready
-- Make the jobs of one submit eligible, but for those that are delayed.
-- params  first, last
-- holds   the numbers above first up to last were taken by this submit alone
INSERT INTO ready (class_id, park, order_key, seq, eligible_at, epoch, attempts, crashes, tenant)
SELECT j.class_id, '', j.order_key, j.seq, j.submitted_at, 0, 0, 0, CASE c.fair WHEN 1 THEN ifnull(j.tenant, '') END
  FROM job j CROSS JOIN class c ON c.class_id = j.class_id
 WHERE j.seq > :first AND j.seq <= :last AND j.order_key IS NOT NULL;

-- name: submit_transient
-- Put a transient job into its class's list.
-- params  class_id, seq, job_id, task, tenant, trace_id, timeout_ms, payload
INSERT INTO transient (class_id, seq, job_id, task, tenant, trace_id, timeout_ms, payload)
VALUES (:class_id, :seq, :job_id, :task, :tenant, :trace_id, :timeout_ms, :payload);

-- name: submit_unique
-- Let a live job hold its unique key.
-- params  namespace_id, unique_key, seq
INSERT INTO unique_key (namespace_id, unique_key, seq) VALUES (:namespace_id, :unique_key, :seq);
