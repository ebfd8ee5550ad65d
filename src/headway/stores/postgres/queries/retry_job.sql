-- retry_job: a job that ended is back in the queue; it no longer expires.
-- params  seq
UPDATE {schema}.job SET expires_at = NULL WHERE seq = :seq;
