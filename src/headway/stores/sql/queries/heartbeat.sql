-- heartbeat: register workers, renew their leases and read both.

-- name: renew
-- Move a worker's deadline.
-- params  now_at, lease_ends_at, slots, reserved, offers, worker_id
UPDATE {schema}.worker SET heartbeat_at = :now_at, lease_ends_at = :lease_ends_at, slots = :slots,
       reserved = :reserved, offers = :offers
 WHERE worker_id = :worker_id;
