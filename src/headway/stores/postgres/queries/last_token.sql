-- last_token: the token of the lease that each of these jobs had last, and where the job is now.
-- params  seqs
SELECT j.seq, coalesce(o.token, r.token, d.token) AS token, coalesce(o.state, 'queued') AS state FROM {schema}.job j
  LEFT JOIN {schema}.outcome o ON o.seq = j.seq
  LEFT JOIN {schema}.ready r ON r.class_id = j.class_id AND r.park = j.park AND r.order_key = j.order_key AND r.seq = j.seq
  LEFT JOIN {schema}.delayed d ON d.namespace_id = j.namespace_id AND d.due_at = j.due_at AND d.seq = j.seq
 WHERE j.seq = ANY (:seqs::bigint[]) AND NOT EXISTS (SELECT FROM {schema}.lease l WHERE l.seq = j.seq);
