-- workflow: edges between jobs, batches and steps.

-- name: batches
-- These batches.
-- params  batch_ids, namespace_id
-- use batch
 WHERE b.batch_id = ANY (:batch_ids::text[]) AND b.namespace_id = :namespace_id;

-- name: edges_to
-- What these jobs wait or waited for, in the order given.
-- params  seqs, results
-- use edges_into
 WHERE e.dependant_seq = ANY (:seqs::bigint[]) ORDER BY e.dependant_seq, e.place;

-- name: lease_token
-- The token of the lease that a job has, which is locked until the end.
-- params  seq
SELECT token FROM {schema}.lease WHERE seq = :seq FOR NO KEY UPDATE;

-- name: settle
-- Settle edges, cancel members of cancelled batches and count what has changed in batches, in one step.
-- params  namespace_id, now_at, alone, unsettled, budget, sources, reached, states, batches, members, c_batch, c_kind,
--         c_count, s_task, s_tenant, s_step
SELECT * FROM {schema}.settle_{version}(:namespace_id, :now_at, :alone, :unsettled, :budget, :sources, :reached,
                                        :states, :batches, :members, NULL, :c_batch, :c_kind, :c_count, :s_task, :s_tenant, :s_step);

-- name: settle_turn
-- Take the turn to settle, if no other session has it.
-- params  namespace_id
SELECT pg_try_advisory_xact_lock({flow}, :namespace_id);

-- name: sources
-- Those of these jobs and batches that exist, as sources of edges.
-- params  ids, namespace_id
SELECT j.job_id, j.seq, j.tenant,
       CASE WHEN o.state IS NULL THEN 'live' WHEN o.state = 'completed' THEN 'completed' ELSE 'failed' END AS status,
       false AS failing
  FROM {schema}.job j LEFT JOIN {schema}.outcome o ON o.seq = j.seq
 WHERE j.job_id = ANY (:ids::text[]) AND j.namespace_id = :namespace_id
 UNION ALL
SELECT b.batch_id, b.seq, b.tenant, CASE WHEN b.finished_at IS NULL THEN 'live'
                                         WHEN b.failed + b.cancelled = 0 THEN 'completed' ELSE 'failed' END, b.failing
  FROM {schema}.batch b WHERE b.batch_id = ANY (:ids::text[]) AND b.namespace_id = :namespace_id;

-- name: submit_graph
-- Keep the batch, the jobs and the edges of a graph, in one step.
-- params  namespace_id, now_at, rules, own, careful, alone, g_class, g_tenant, g_persist, g_lane, g_rung, g_needs, ids, tasks,
--         payloads, groups, steps, timeouts, retries, retry, delays, dues, expiries, keys, key_ms, digests, uniques,
--         traces, limits, members, awaited, back, w_node, w_due, w_delay, e_node, e_place, e_source, e_inner, e_rule,
--         batch_id, creates, b_name, b_key, b_tenant, b_parent, b_open, s_task, s_tenant, s_step
SELECT status, bad, what, known, known_ids, classes, batch_id, created FROM {schema}.submit_graph_{version}(
  :namespace_id::int, :now_at::bigint, :rules::bigint, :own::boolean, :careful::boolean, :alone::boolean,
  :g_class::int[], :g_tenant::text[], :g_persist::boolean[], :g_lane::text[], :g_rung::text[], :g_needs::text[], :ids::text[],
  :tasks::text[], :payloads::bytea[], :groups::int[], :steps::bigint[], :timeouts::bigint[], :retries::int[],
  :retry::text[], :delays::bigint[], :dues::bigint[], :expiries::bigint[], :keys::text[], :key_ms::bigint[],
  :digests::bytea[], :uniques::text[], :traces::text[], :limits::text[], :members::boolean[], :awaited::boolean[],
  :back::boolean, :w_node::int[], :w_due::bigint[], :w_delay::bigint[], :e_node::int[], :e_place::int[],
  :e_source::text[], :e_inner::int[], :e_rule::text[], :batch_id::text, :creates::boolean, :b_name::text,
  :b_key::text, :b_tenant::text, :b_parent::text, :b_open::boolean, :s_task::text[], :s_tenant::text[],
  :s_step::bigint[]);
