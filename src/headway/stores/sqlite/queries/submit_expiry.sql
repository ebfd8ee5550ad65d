-- submit_expiry: note when a queued job expires.
-- params  namespace_id, expires_at, seq
INSERT INTO expiry (namespace_id, expires_at, seq) VALUES (:namespace_id, :expires_at, :seq);
