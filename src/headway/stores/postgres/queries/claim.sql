-- claim: lease waiting jobs to a worker.

-- name: delayed_due
-- Take out the delayed jobs that have fallen due, earliest first.
-- params  namespace_id, now_at, limit
WITH d AS (
  DELETE FROM {schema}.delayed WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.delayed WHERE namespace_id = :namespace_id AND due_at <= :now_at
     ORDER BY namespace_id, due_at, seq LIMIT :limit FOR UPDATE SKIP LOCKED))
  RETURNING *)
SELECT d.class_id, d.seq, j.task, j.tenant, j.expires_at, j.unique_key, d.epoch, d.attempts, d.crashes, d.timeout_ms,
       d.token, d.error, d.reason
  FROM d JOIN {schema}.job j ON j.seq = d.seq ORDER BY d.due_at, d.seq;

-- name: exchange
-- End leases, record progress, claim and read a snapshot of what waits, in one step.
-- params  namespace_id, now_at, rules, binds, due_done, settles, asker, spot, claim, f_ids, f_seqs, f_tokens, f_states,
--         f_results, f_attempts, f_crashes, f_timeouts, f_problems, f_errors, f_reasons, p_ids, p_seqs, p_tokens,
--         p_fractions, p_notes, claims, free, free_below, leave_free, classes, t_class, t_most, t_below, t_until,
--         t_label, t_floor, t_rewound, t_rung, t_pool, r_name, r_prefix, r_limit, r_interval, r_burst, r_tenant,
--         k_task, k_rules, k_default, paused_tasks, paused_tenants, rung_names, rung_limits, rung_percents, pool_slots,
--         pool_lanes, s_task, s_tenant, s_step, look, waits, lanes, pictured, bound, skipped_max
SELECT * FROM {schema}.exchange_{version}(
  :namespace_id, :now_at, :rules, :binds, :due_done, :settles, :asker, :spot, :claim, :f_ids, :f_seqs, :f_tokens,
  :f_states, :f_results, :f_attempts, :f_crashes, :f_timeouts, :f_problems, :f_errors, :f_reasons, :p_ids, :p_seqs, :p_tokens,
  :p_fractions, :p_notes, :claims, :free, :free_below, :leave_free, :classes, :t_class, :t_most, :t_below, :t_until,
  :t_label, :t_floor, :t_rewound, :t_rung, :t_pool, :r_name, :r_prefix, :r_limit, :r_interval, :r_burst, :r_tenant,
  :k_task, :k_rules, :k_default, :paused_tasks, :paused_tenants, :rung_names, :rung_limits, :rung_percents, :pool_slots,
  :pool_lanes, :s_task, :s_tenant, :s_step, :look, :waits, :lanes, :pictured, :bound, :skipped_max);

-- name: progress
-- Note how far running jobs have come.
-- params  seqs, tokens, fractions, notes
UPDATE {schema}.lease l SET progress = p.fraction, note = p.note
  FROM unnest(:seqs::bigint[], :tokens::bytea[], :fractions::double precision[], :notes::text[])
       p (seq, token, fraction, note)
 WHERE l.seq = p.seq AND l.token = p.token;
