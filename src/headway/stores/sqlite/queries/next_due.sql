-- next_due: when the next delayed job falls due.
-- params  namespace_id
SELECT due_at FROM delayed WHERE namespace_id = :namespace_id ORDER BY due_at LIMIT 1;
