-- limits: count what runs against limits, and move the jobs that a full limit holds back to blocked queues.

-- name: rate_forget
-- Forget a rate that counts no starts any more.
-- params  namespace_id, rate_key
DELETE FROM {schema}.rate WHERE namespace_id = :namespace_id AND rate_key = :rate_key;

-- name: rates
-- How far ahead the starts of all rates were given away.
-- params  namespace_id
SELECT rate_key, reached_us FROM {schema}.rate WHERE namespace_id = :namespace_id;
