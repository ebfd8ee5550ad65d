-- awaiting: the workers that wait, longest first.
-- params  namespace_id, now_at
SELECT worker_id, offers, wait_lanes FROM worker
 WHERE namespace_id = :namespace_id AND waiting > 0 AND state = 'active' AND lease_ends_at > :now_at ORDER BY waiting, worker_id;
