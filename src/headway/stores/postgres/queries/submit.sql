-- submit: store new jobs.

-- name: known_key
-- The job that an idempotency key stands for, while it is remembered.
-- params  namespace_id, tenant, idempotency_key, now_at
SELECT job_id, digest FROM {schema}.idempotency
 WHERE namespace_id = :namespace_id AND tenant = :tenant AND idempotency_key = :idempotency_key AND until_at > :now_at;

-- name: submit
-- Keep jobs, in one step.
-- params  namespace_id, now_at, rules, own, careful, g_class, g_tenant, g_persist, g_lane, g_rung, g_needs, ids, tasks,
--         payloads, groups, steps, timeouts, retries, retry, delays, dues, expiries, keys, key_ms, digests, uniques,
--         traces, limits
SELECT status, bad, what, known, known_ids, classes FROM {schema}.submit_{version}(
  :namespace_id::int, :now_at::bigint, :rules::bigint, :own::boolean, :careful::boolean, :g_class::int[],
  :g_tenant::text[], :g_persist::boolean[], :g_lane::text[], :g_rung::text[], :g_needs::text[], :ids::text[],
  :tasks::text[], :payloads::bytea[], :groups::int[], :steps::bigint[], :timeouts::bigint[], :retries::int[],
  :retry::text[], :delays::bigint[], :dues::bigint[], :expiries::bigint[], :keys::text[], :key_ms::bigint[],
  :digests::bytea[], :uniques::text[], :traces::text[], :limits::text[], NULL, NULL, NULL);

-- name: submit_many
-- Keep a batch of plain jobs.
-- params  namespace_id, now_at, classes, class_id, task, timeout_ms, max_retries, ids, payloads, groups, tasks,
--         timeouts, retries, retry, traces, limits
-- gives   whether that was done
SELECT {schema}.submit_many_{version}(:namespace_id, :now_at, :classes, :class_id, :task, :timeout_ms, :max_retries,
                                      :ids, :payloads, :groups, :tasks, :timeouts, :retries, :retry, :traces, :limits);

-- name: submit_one
-- Keep one plain job.
-- params  namespace_id, now_at, class_id, job_id, task, payload, timeout_ms, max_retries, retry, trace_id, limits
-- gives   whether that was done
SELECT {schema}.submit_one_{version}(:namespace_id, :now_at, :class_id, :job_id, :task, :payload, :timeout_ms,
                                     :max_retries, :retry, :trace_id, :limits);

-- name: submit_within
-- Keep one plain job in a caller's transaction.
-- params  namespace_id, now_at, class_id, job_id, task, payload, timeout_ms, max_retries, retry, trace_id, limits
-- gives   whether that was done
SELECT {schema}.submit_within_{version}(
  :namespace_id::int, :now_at::bigint, :class_id::int, :job_id::text, :task::text, :payload::bytea, :timeout_ms::bigint,
  :max_retries::int, :retry::text, :trace_id::text, :limits::text) AS done;
