-- server_facts: what an operator wants to know of the server.
-- params  none
SELECT current_setting('server_version') AS version, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync, current_setting('synchronous_standby_names') AS standbys,
       (SELECT format('pid %s (%s), for %s s', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
                      extract(epoch FROM clock_timestamp() - a.xact_start)::int)
          FROM pg_catalog.pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - interval '60 s'
           AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
         ORDER BY a.xact_start LIMIT 1) AS oldest;
