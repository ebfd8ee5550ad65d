-- register: make a worker known, or known anew.
-- params  worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, now_at, lease_ends_at
INSERT OR REPLACE INTO worker (worker_id, namespace_id, host, pid, slots, reserved, offers, version, protocol, state,
                               started_at, heartbeat_at, lease_ends_at)
VALUES (:worker_id, :namespace_id, :host, :pid, :slots, :reserved, :offers, :version, :protocol, 'active',
        :now_at, :now_at, :lease_ends_at);
