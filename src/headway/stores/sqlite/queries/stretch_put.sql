-- stretch_put: a stretch goes on, or begins.
-- params  class_id, from_at, until_at, reason
INSERT OR REPLACE INTO stretch (class_id, from_at, until_at, reason) VALUES (:class_id, :from_at, :until_at, :reason);
