-- transaction: begin a transaction, and notify workers and watchers of what it changed.

-- name: clock_read
-- What is remembered of the clock: how far store time is ahead of it, and the moment it has reached.
-- params  none
SELECT (SELECT value FROM format WHERE name = 'clock_ahead'), (SELECT value FROM format WHERE name = 'clock_reached');

-- name: clock_write
-- Remember how far store time is ahead of the clock, and the moment it has reached.
-- params  ahead_ms, reached_at
INSERT OR REPLACE INTO format VALUES ('clock_ahead', :ahead_ms), ('clock_reached', :reached_at);

-- name: count
-- Add to the totals of this minute.
-- params  namespace_id, minute, what, count
INSERT INTO tally (namespace_id, minute, what, count) VALUES (:namespace_id, :minute, :what, :count)
    ON CONFLICT DO UPDATE SET count = count + excluded.count;

-- name: namespace_add
-- Make a namespace known.
-- params  name
INSERT INTO namespace (name) VALUES (:name) ON CONFLICT DO UPDATE SET name = excluded.name RETURNING namespace_id;

-- name: namespace_find
-- The number of a namespace.
-- params  name
SELECT namespace_id FROM namespace WHERE name = :name;

-- name: needs_wal
-- Say whether the file lacks what its log has. The file says so while it is in use, file and log together do not.
-- params  needed
INSERT OR REPLACE INTO format VALUES ('needs_wal', :needed);
