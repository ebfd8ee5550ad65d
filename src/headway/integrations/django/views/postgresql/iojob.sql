-- iojob: every job as IOQueue tells it, over Headway's own tables. Transient jobs are not kept.
-- holds  a row a job; attempts counts those that failed, so a job that is done at once has none
CREATE OR REPLACE VIEW {view} AS
SELECT j.job_id AS id, j.seq, n.name AS namespace, j.task AS task_name,
       CASE WHEN b.split THEN b.body -> 'args' ELSE '[]'::jsonb END AS args,
       CASE WHEN b.split THEN coalesce(b.body -> 'kwargs', '{{}}'::jsonb)
            ELSE coalesce(b.body, '{{}}'::jsonb) END AS kwargs,
       CASE WHEN b.split THEN b.body -> 'asked' END AS asked, j.unique_key AS dedupe_key,
       CASE WHEN l.seq IS NOT NULL THEN 'running' WHEN o.seq IS NULL THEN 'pending'
            WHEN o.state = 'completed' THEN 'done' ELSE 'error' END AS status,
       CASE WHEN l.seq IS NOT NULL THEN 'executing' WHEN o.seq IS NOT NULL THEN o.state ELSE 'queued' END AS state,
       to_timestamp(j.submitted_at / 1000.0) AS queued_at,
       to_timestamp(coalesce(d.due_at, l.eligible_at, o.eligible_at, r.eligible_at,
                             j.submitted_at) / 1000.0) AS scheduled_at,
       to_timestamp(coalesce(l.started_at, o.started_at, (SELECT t.started_at FROM {tables}attempt t WHERE t.seq = j.seq
                                                             ORDER BY t.epoch DESC LIMIT 1)) / 1000.0) AS picked_at,
       to_timestamp(w.lease_ends_at / 1000.0) AS visible_until,
       to_timestamp(o.finished_at / 1000.0) AS finished_at,
       coalesce(l.worker_id, o.worker_id, (SELECT t.worker_id FROM {tables}attempt t WHERE t.seq = j.seq
                                           ORDER BY t.epoch DESC LIMIT 1)) AS picked_by,
       coalesce(l.attempts - 1, o.attempts - CASE WHEN o.state = 'completed' THEN 1 ELSE 0 END, r.attempts, d.attempts,
                0) AS attempts,
       j.max_retries, c.lane, j.tenant, coalesce(l.progress, o.progress) AS progress, coalesce(l.note, o.note) AS note,
       coalesce(o.reason, r.reason, d.reason) AS reason,
       CASE WHEN e.error IS NOT NULL THEN (e.error ->> 'type') || ': ' || (e.error ->> 'message')
            ELSE '' END AS last_error,
       coalesce(e.error ->> 'traceback', '') AS last_traceback,
       CASE WHEN get_byte(o.result, 0) = 1
            THEN replace(convert_from(substring(o.result FROM 2), 'UTF8'), '\u0000', '\ufffd')::jsonb END AS result,
       coalesce(o.result_error, '') AS result_error, coalesce(j.trace_id, '') AS trace_id
  FROM {tables}job j
  JOIN {tables}namespace n ON n.namespace_id = j.namespace_id
  JOIN {tables}class c ON c.class_id = j.class_id
  LEFT JOIN {tables}lease l ON l.seq = j.seq
  LEFT JOIN {tables}worker w ON w.worker_id = l.worker_id
  LEFT JOIN {tables}outcome o ON o.seq = j.seq
  LEFT JOIN {tables}ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key
     AND r.seq = j.seq
  LEFT JOIN {tables}delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
  -- Arguments travel by name; those of a function that takes any are a list and an object. jsonb knows no NUL.
  CROSS JOIN LATERAL (SELECT body, jsonb_typeof(body -> 'args') = 'array'
                         AND body - ARRAY['args', 'kwargs', 'asked'] = '{{}}'::jsonb
                        FROM (SELECT CASE WHEN get_byte(j.payload, 0) = 1 THEN
                                replace(convert_from(substring(j.payload FROM 2), 'UTF8'), '\u0000',
                                        '\ufffd')::jsonb END)
                             AS read (body)) AS b (body, split)
  CROSS JOIN LATERAL (SELECT replace(coalesce(o.error, r.error, d.error), '\u0000', '\ufffd')::jsonb) AS e (error)
