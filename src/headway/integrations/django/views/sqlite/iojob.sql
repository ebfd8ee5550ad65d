-- iojob: every job as IOQueue tells it, over Headway's own tables. Transient jobs are not kept.
-- holds  a row a job; attempts counts those that failed, so a job that is done at once has none; moments are as Django
--        writes them: UTC, and no fraction where there is none
CREATE VIEW {view} AS
SELECT id, seq, namespace, task_name,
       CASE WHEN split THEN json_extract(body, '$.args') ELSE '[]' END AS args,
       CASE WHEN split THEN coalesce(json_extract(body, '$.kwargs'), '{{}}') ELSE coalesce(body, '{{}}') END AS kwargs,
       CASE WHEN split THEN json_extract(body, '$.asked') END AS asked, dedupe_key, status, state,
       strftime('%Y-%m-%d %H:%M:%S', queued / 1000, 'unixepoch')
         || CASE queued % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', queued % 1000) END AS queued_at,
       strftime('%Y-%m-%d %H:%M:%S', scheduled / 1000, 'unixepoch')
         || CASE scheduled % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', scheduled % 1000) END AS scheduled_at,
       strftime('%Y-%m-%d %H:%M:%S', picked / 1000, 'unixepoch')
         || CASE picked % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', picked % 1000) END AS picked_at,
       strftime('%Y-%m-%d %H:%M:%S', visible / 1000, 'unixepoch')
         || CASE visible % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', visible % 1000) END AS visible_until,
       strftime('%Y-%m-%d %H:%M:%S', finished / 1000, 'unixepoch')
         || CASE finished % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', finished % 1000) END AS finished_at,
       picked_by, attempts, max_retries, lane, tenant, progress, note, reason,
       CASE WHEN problem IS NULL THEN ''
            ELSE json_extract(problem, '$.type') || ': ' || json_extract(problem, '$.message') END AS last_error,
       coalesce(json_extract(problem, '$.traceback'), '') AS last_traceback, result, result_error, trace_id
  -- Arguments travel by name; those of a function that takes any are a list and an object.
  FROM (SELECT *, coalesce(json_type(body, '$.args') = 'array', 0)
                  AND NOT EXISTS (SELECT 1 FROM json_each(body) e
                                   WHERE e.key NOT IN ('args', 'kwargs', 'asked')) AS split
          FROM (
    SELECT j.job_id AS id, j.seq, n.name AS namespace, j.task AS task_name, j.unique_key AS dedupe_key,
           CASE WHEN substr(j.payload, 1, 1) = x'01'
                THEN replace(CAST(substr(j.payload, 2) AS TEXT), '\u0000', '\ufffd') END AS body,
           CASE WHEN l.seq IS NOT NULL THEN 'running' WHEN o.seq IS NULL THEN 'pending'
                WHEN o.state = 'completed' THEN 'done' ELSE 'error' END AS status,
           CASE WHEN l.seq IS NOT NULL THEN 'executing' WHEN o.seq IS NOT NULL THEN o.state ELSE 'queued' END AS state,
           j.submitted_at AS queued,
           coalesce(d.due_at, l.eligible_at, o.eligible_at, r.eligible_at, j.submitted_at) AS scheduled,
           coalesce(l.started_at, o.started_at, (SELECT t.started_at FROM {tables}attempt t WHERE t.seq = j.seq
                                                  ORDER BY t.epoch DESC LIMIT 1)) AS picked,
           w.lease_ends_at AS visible, o.finished_at AS finished,
           coalesce(l.worker_id, o.worker_id, (SELECT t.worker_id FROM {tables}attempt t WHERE t.seq = j.seq
                                                ORDER BY t.epoch DESC LIMIT 1)) AS picked_by,
           coalesce(l.attempts - 1, o.attempts - CASE WHEN o.state = 'completed' THEN 1 ELSE 0 END, r.attempts,
                    d.attempts, 0) AS attempts,
           j.max_retries, c.lane, j.tenant, coalesce(l.progress, o.progress) AS progress,
           coalesce(l.note, o.note) AS note, coalesce(o.reason, r.reason, d.reason) AS reason,
           replace(coalesce(o.error, r.error, d.error), '\u0000', '\ufffd') AS problem,
           CASE WHEN substr(o.result, 1, 1) = x'01'
                THEN replace(CAST(substr(o.result, 2) AS TEXT), '\u0000', '\ufffd') END AS result,
           coalesce(o.result_error, '') AS result_error, coalesce(j.trace_id, '') AS trace_id
      FROM {tables}job j
      JOIN {tables}namespace n ON n.namespace_id = j.namespace_id
      JOIN {tables}class c ON c.class_id = j.class_id
      LEFT JOIN {tables}lease l ON l.seq = j.seq
      LEFT JOIN {tables}worker w ON w.worker_id = l.worker_id
      LEFT JOIN {tables}outcome o ON o.seq = j.seq
      LEFT JOIN {tables}ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key
         AND r.seq = j.seq
      LEFT JOIN {tables}delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq))
