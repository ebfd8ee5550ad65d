-- running: what a limit is counted by, for each job that runs.
-- params  namespace_id
SELECT l.seq, j.task, j.tenant, j.limits FROM {schema}.lease l JOIN {schema}.job j ON j.seq = l.seq WHERE j.namespace_id = :namespace_id;
