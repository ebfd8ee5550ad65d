-- progress: note how far a running job has come.
-- params  progress, note, seq, token
UPDATE lease SET progress = :progress, note = :note WHERE seq = :seq AND token = :token;
