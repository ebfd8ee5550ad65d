-- 0003_leases_by_tenant: leases are few, so the place of a tenant's next job is found without an index of them.
-- holds  older releases need no index of this name

DROP INDEX lease_tenant;
