-- transaction: begin a transaction, and notify workers and watchers of what it changed.

-- name: begin
-- Begin a transaction on a namespace, with others or alone.
-- params  namespace_id, now_at, alone
SELECT now_at, rules, parked, unsettled FROM {schema}.begin_{version}(:namespace_id, :now_at, :alone);

-- name: count
-- Add to the totals of this minute.
-- params  namespace_id, now_at, kinds, counts
SELECT {schema}.count_up_{version}(:namespace_id, :now_at, :kinds, :counts, false);

-- name: namespace_add
-- Make a namespace known.
-- params  name, channel
INSERT INTO {schema}.namespace (name, channel) VALUES (:name, :channel)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING namespace_id;

-- name: notify
-- Wake one subscription once this is durable.
-- params  namespace_id, kind, name
SELECT {schema}.notify_{version}(:namespace_id, :kind, :name);

-- name: notify_jobs
-- Tell watchers which jobs have changed.
-- params  namespace_id, job_ids
SELECT {schema}.notify_jobs_{version}(:namespace_id, :job_ids);

-- name: now
-- The moment, and of a namespace its number and the version of its rules; none until a process has written there.
-- params  now_at, name
SELECT {schema}.now_ms_{version}(:now_at) AS now_at, n.namespace_id, n.rules
  FROM (SELECT) x LEFT JOIN {schema}.namespace n ON n.name = :name;

-- name: server_facts
-- What an operator wants to know of the server.
-- params  none
SELECT current_setting('server_version') AS version, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync, current_setting('synchronous_standby_names') AS standbys,
       (SELECT format('pid %s (%s), for %s s', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
                      extract(epoch FROM clock_timestamp() - a.xact_start)::int)
          FROM pg_catalog.pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
           AND a.xact_start < clock_timestamp() - interval '60 s'
           AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
         ORDER BY a.xact_start LIMIT 1) AS oldest;

-- name: unwatch
-- Remove a watcher.
-- params  namespace_id, names
DELETE FROM {schema}.watcher WHERE namespace_id = :namespace_id AND name = ANY (:names::text[]);

-- name: wake
-- Wake a waiting worker for each job that became eligible.
-- params  namespace_id, now_at, classes, but
SELECT {schema}.wake_{version}(:namespace_id, :now_at, :classes, :but);

-- name: wake_any
-- Wake one waiting worker, whatever it offers.
-- params  namespace_id, now_at
SELECT {schema}.wake_any_{version}(:namespace_id, :now_at);

-- name: wake_all
-- Wake every waiting worker.
-- params  namespace_id, now_at
WITH woken AS (UPDATE {schema}.worker SET waiting = NULL
                WHERE namespace_id = :namespace_id AND waiting IS NOT NULL AND state = 'active'
                  AND lease_ends_at > :now_at RETURNING worker_id)
SELECT {schema}.notify_{version}(:namespace_id, 'w', worker_id) FROM woken;

-- name: watch
-- Note a watcher of every change, for a while; forget watchers that said so too long ago.
-- params  namespace_id, names, length_ms
WITH old AS (DELETE FROM {schema}.watcher WHERE until_at <= {schema}.raw_ms_{version}() - 3600000)
INSERT INTO {schema}.watcher (namespace_id, name, until_at)
SELECT :namespace_id, name, {schema}.raw_ms_{version}() + :length_ms FROM unnest(:names::text[]) name
    ON CONFLICT (namespace_id, name) DO UPDATE SET until_at = excluded.until_at;
