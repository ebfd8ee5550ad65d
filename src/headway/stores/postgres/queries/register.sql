-- register: make a worker known, or known anew; its last claim stays, so that it may be repeated.
-- params  worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, now_at, lease_ends_at
INSERT INTO {schema}.worker (worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, state,
                             started_at, heartbeat_at, lease_ends_at)
VALUES (:worker_id, :namespace_id, :host, :pid, :slots, :reserved, :offers, :version, :protocol, 'active', :now_at, :now_at, :lease_ends_at)
    ON CONFLICT (worker_id) DO UPDATE SET namespace_id = excluded.namespace_id, host = excluded.host, pid = excluded.pid,
       slots = excluded.slots, reserved = excluded.reserved, offers = excluded.offers, version = excluded.version,
       protocol = excluded.protocol, state = excluded.state, started_at = excluded.started_at,
       heartbeat_at = excluded.heartbeat_at, lease_ends_at = excluded.lease_ends_at, waiting = NULL;
