-- limits: count what runs against limits, and move the jobs that a full limit holds back to blocked queues.

-- name: live_slots
-- The slots of the workers that take jobs.
-- params  namespace_id, now_at
SELECT coalesce(sum(slots), 0) FROM {schema}.worker WHERE namespace_id = :namespace_id AND state = 'active'
   AND lease_ends_at > :now_at;

-- name: rate_forget
-- Forget a rate that counts no starts any more.
-- params  namespace_id, rate_key
DELETE FROM {schema}.rate WHERE namespace_id = :namespace_id AND rate_key = :rate_key;

-- name: rates
-- How far ahead the starts of all rates were given away.
-- params  namespace_id
SELECT rate_key, reached_us FROM {schema}.rate WHERE namespace_id = :namespace_id;
