-- ioattempt: the attempts that did not complete their job.
-- holds  moments as Django writes them: UTC, and no fraction where there is none
CREATE VIEW {view} AS
SELECT t.seq || '.' || t.epoch AS id, j.job_id, n.name AS namespace, t.number, t.worker_id AS picked_by,
       strftime('%Y-%m-%d %H:%M:%S', t.started_at / 1000, 'unixepoch')
         || CASE t.started_at % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', t.started_at % 1000) END AS picked_at,
       strftime('%Y-%m-%d %H:%M:%S', t.ended_at / 1000, 'unixepoch')
         || CASE t.ended_at % 1000 WHEN 0 THEN '' ELSE printf('.%03d000', t.ended_at % 1000) END AS finished_at,
       t.reason,
       coalesce(json_extract(replace(t.error, '\u0000', '\ufffd'), '$.type') || ': '
                || json_extract(replace(t.error, '\u0000', '\ufffd'), '$.message'), '') AS error,
       coalesce(json_extract(replace(t.error, '\u0000', '\ufffd'), '$.traceback'), '') AS traceback
  FROM {tables}attempt t
  JOIN {tables}job j ON j.seq = t.seq
  JOIN {tables}namespace n ON n.namespace_id = j.namespace_id
