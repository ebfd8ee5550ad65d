-- exchange: end leases, note progress, claim and picture what waits, in one step.
-- params  namespace_id, now_at, rules, asker, spot, claim, f_ids, f_seqs, f_tokens, f_states, f_results, f_attempts, f_crashes, f_timeouts, f_problems, f_errors, f_reasons, p_ids, p_seqs, p_tokens, p_fractions, p_notes, claims, free, free_below, leave_free, classes, t_class, t_most, t_below, t_until, t_label, t_floor, t_rewound, look, waits, lanes, pictured, bound, passed_max
SELECT * FROM {schema}.exchange_{version}(
  :namespace_id, :now_at, :rules, :asker, :spot, :claim, :f_ids, :f_seqs, :f_tokens, :f_states, :f_results, :f_attempts, :f_crashes, :f_timeouts,
  :f_problems, :f_errors, :f_reasons, :p_ids, :p_seqs, :p_tokens, :p_fractions, :p_notes, :claims, :free, :free_below, :leave_free, :classes,
  :t_class, :t_most, :t_below, :t_until, :t_label, :t_floor, :t_rewound, :look, :waits, :lanes, :pictured, :bound, :passed_max);
