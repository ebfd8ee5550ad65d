-- stretch_put: a stretch goes on, or begins.
-- params  class_id, from_at, until_at, reason
INSERT INTO {schema}.stretch (class_id, from_at, until_at, reason) VALUES (:class_id, :from_at, :until_at, :reason)
    ON CONFLICT (class_id, from_at) DO UPDATE SET until_at = excluded.until_at, reason = excluded.reason;
