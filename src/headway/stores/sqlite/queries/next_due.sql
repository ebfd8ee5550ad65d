-- next_due: when the next delayed job falls due, or the next park opens.
-- params  namespace_id, now_at
SELECT min(at) FROM (
  SELECT (SELECT due_at FROM delayed WHERE namespace_id = :namespace_id ORDER BY due_at LIMIT 1) AS at
  UNION ALL SELECT (SELECT open_at FROM park WHERE namespace_id = :namespace_id AND open_at > :now_at ORDER BY open_at LIMIT 1));
