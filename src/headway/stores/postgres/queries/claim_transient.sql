-- claim_transient: take transient jobs, but for those of paused tasks; nothing is kept of them.
-- params  class_id, paused, count
DELETE FROM {schema}.transient WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM {schema}.transient WHERE class_id = :class_id AND task <> ALL (:paused::text[])
   ORDER BY class_id, seq LIMIT :count FOR UPDATE SKIP LOCKED))
RETURNING seq, job_id, task, payload, tenant, trace_id, timeout_ms;
