-- clock_write: remember both.
-- params  ahead_ms, reached_at
INSERT OR REPLACE INTO format VALUES ('clock_ahead', :ahead_ms), ('clock_reached', :reached_at);
