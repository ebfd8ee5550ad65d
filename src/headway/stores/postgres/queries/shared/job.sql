-- job: everything about a job, wherever it is.
SELECT j.job_id, j.seq, j.task, j.payload, c.lane, c.needs, c.rung, j.tenant, j.max_retries, j.timeout_ms AS asked_timeout_ms,
       j.retry, j.submitted_at, j.expires_at, j.idempotency_key, j.unique_key, j.trace_id, j.class_id, j.order_key, d.due_at,
       CASE WHEN l.seq IS NOT NULL THEN 'executing' WHEN o.seq IS NOT NULL THEN o.state ELSE 'queued' END AS state,
       coalesce(l.eligible_at, o.eligible_at, r.eligible_at) AS eligible_at,
       coalesce(l.epoch, o.epoch, r.epoch, d.epoch, 0) AS epoch,
       coalesce(l.attempts, o.attempts, r.attempts, d.attempts, 0) AS attempts,
       coalesce(l.crashes, o.crashes, r.crashes, d.crashes, 0) AS crashes,
       coalesce(l.timeout_ms, o.timeout_ms, r.timeout_ms, d.timeout_ms, j.timeout_ms) AS timeout_ms,
       coalesce(l.started_at, o.started_at) AS started_at, o.finished_at,
       coalesce(l.cancel_at, o.cancel_at) AS cancel_at, coalesce(l.worker_id, o.worker_id) AS worker_id,
       coalesce(l.progress, o.progress) AS progress, coalesce(l.note, o.note) AS note,
       coalesce(o.error, r.error, d.error) AS error, coalesce(o.reason, r.reason, d.reason) AS reason, o.result_error, o.result,
       coalesce(o.token, r.token, d.token) AS token, j.limits, r.park, l.assigned,
       coalesce(l.parked_for, o.parked_for) AS parked_for, coalesce(l.parked_ms, o.parked_ms, 0) AS parked_ms
  FROM {schema}.job j JOIN {schema}.class c ON c.class_id = j.class_id
  LEFT JOIN {schema}.lease l ON l.seq = j.seq
  LEFT JOIN {schema}.outcome o ON o.seq = j.seq
  LEFT JOIN {schema}.ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key AND r.seq = j.seq
  LEFT JOIN {schema}.delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
