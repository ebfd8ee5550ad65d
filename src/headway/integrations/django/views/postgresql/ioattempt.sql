-- ioattempt: the attempts that did not complete their job.
CREATE OR REPLACE VIEW {view} AS
SELECT t.seq || '.' || t.epoch AS id, j.job_id, n.name AS namespace, t.number, t.worker_id AS picked_by,
       to_timestamp(t.started_at / 1000.0) AS picked_at, to_timestamp(t.ended_at / 1000.0) AS finished_at, t.reason,
       coalesce((e.error ->> 'type') || ': ' || (e.error ->> 'message'), '') AS error,
       coalesce(e.error ->> 'traceback', '') AS traceback
  FROM {tables}attempt t
  JOIN {tables}job j ON j.seq = t.seq
  JOIN {tables}namespace n ON n.namespace_id = j.namespace_id
  CROSS JOIN LATERAL (SELECT replace(t.error, '\u0000', '\ufffd')::jsonb) AS e (error)
