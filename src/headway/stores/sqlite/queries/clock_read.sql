-- clock_read: what is remembered of the clock: how far store time is ahead of it, and the moment it has reached.
-- params  none
SELECT (SELECT value FROM format WHERE name = 'clock_ahead'), (SELECT value FROM format WHERE name = 'clock_reached');
