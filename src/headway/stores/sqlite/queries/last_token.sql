-- last_token: the token of the lease that a job had last, and where the job is now.
-- params  seq
SELECT coalesce(o.token, r.token, d.token) AS token, ifnull(o.state, 'queued') AS state FROM job j
  LEFT JOIN outcome o ON o.seq = j.seq
  LEFT JOIN ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key AND r.seq = j.seq
  LEFT JOIN delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
 WHERE j.seq = :seq AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.seq = j.seq);
