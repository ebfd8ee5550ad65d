-- needs_wal: say whether the file lacks what its log has. The file says so while it is in use, file and log together do not.
-- params  needed
INSERT OR REPLACE INTO format VALUES ('needs_wal', :needed);
