-- claim_transient: take transient jobs, but for those of paused tasks; nothing is kept of them.
-- params  class_id, paused, count
DELETE FROM transient WHERE class_id = :class_id AND seq IN
  (SELECT seq FROM transient WHERE class_id = :class_id AND task NOT IN (SELECT value FROM json_each(:paused))
    ORDER BY seq LIMIT :count)
RETURNING seq, job_id, task, payload, tenant, trace_id, timeout_ms;
