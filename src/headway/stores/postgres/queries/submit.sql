-- submit: keep jobs, in one step.
-- params  namespace_id, now_at, rules, own, careful, g_class, g_tenant, g_persist, g_lane, g_rung, g_needs, ids, tasks, payloads, groups, steps, timeouts, retries, retry, delays, dues, expiries, keys, key_ms, digests, uniques, traces, limits
SELECT status, bad, what, known, known_ids, classes FROM {schema}.submit_{version}(
  :namespace_id::int, :now_at::bigint, :rules::bigint, :own::boolean, :careful::boolean, :g_class::int[], :g_tenant::text[],
  :g_persist::boolean[], :g_lane::text[], :g_rung::text[], :g_needs::text[], :ids::text[], :tasks::text[], :payloads::bytea[], :groups::int[], :steps::bigint[], :timeouts::bigint[],
  :retries::int[], :retry::text[], :delays::bigint[], :dues::bigint[], :expiries::bigint[], :keys::text[], :key_ms::bigint[],
  :digests::bytea[], :uniques::text[], :traces::text[], :limits::text[]);
