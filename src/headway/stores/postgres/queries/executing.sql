-- executing: the jobs that run, as far as those that wait are concerned.
-- params  namespace_id, from_seq
-- plan    walks lease by its primary key from that number on: rows that are gone lie before it
SELECT l.seq, j.task, c.lane, l.worker_id, l.started_at, l.held FROM {schema}.lease l JOIN {schema}.class c ON c.class_id = l.class_id
  JOIN {schema}.job j ON j.seq = l.seq WHERE c.namespace_id = :namespace_id AND l.seq >= :from_seq ORDER BY l.seq;
