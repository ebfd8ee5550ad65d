-- claim_transient: take transient jobs; nothing is kept of them.
-- params  class_id, count
DELETE FROM transient WHERE class_id = :class_id AND seq IN
  (SELECT seq FROM transient WHERE class_id = :class_id ORDER BY seq LIMIT :count)
RETURNING seq, job_id, task, payload, tenant, trace_id, timeout_ms;
