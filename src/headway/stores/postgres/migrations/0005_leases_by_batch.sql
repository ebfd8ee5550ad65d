-- 0005_leases_by_batch: drop the index of leases by batch, which each claim and each end of a member had to write.
-- holds  only the running members of a batch are counted by it, and there are never more leases than slots

DROP INDEX {schema}.lease_batch;
