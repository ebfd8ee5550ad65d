-- 0004_tenant_lines: the jobs of each tenant in a line are listed beside it, so that a claim writes no index by tenant.
-- holds  each job in the line of a class that tenants share has a row in tenant_line, which may stay once it has left

-- A claim removes no row: that would write a page for each tenant. A row without its job in ready goes when the tenant
-- submits again, when the line is empty, or with the job. Triggers add rows, so those of older releases are here too.
CREATE TABLE tenant_line (
  class_id INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  order_key INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (class_id, tenant, order_key, seq)
) WITHOUT ROWID;
INSERT INTO tenant_line SELECT class_id, tenant, order_key, seq FROM ready WHERE tenant IS NOT NULL AND park = '';
CREATE TRIGGER tenant_line_put AFTER INSERT ON ready WHEN new.tenant IS NOT NULL AND new.park = '' BEGIN
  INSERT OR IGNORE INTO tenant_line VALUES (new.class_id, new.tenant, new.order_key, new.seq);
END;
CREATE TRIGGER tenant_line_share AFTER UPDATE OF tenant ON ready WHEN old.tenant IS NULL AND new.park = '' BEGIN
  INSERT OR IGNORE INTO tenant_line VALUES (new.class_id, new.tenant, new.order_key, new.seq);
END;

-- Blocked jobs still have an index by tenant. The index of the oldest jobs takes the name ready_tenant, because
-- statements of older releases name it.
DROP INDEX ready_tenant;
DROP INDEX ready_age;
CREATE INDEX ready_tenant ON ready (class_id, park, eligible_at) WHERE tenant IS NOT NULL;
CREATE INDEX ready_blocked ON ready (class_id, tenant, order_key) WHERE tenant IS NOT NULL AND park <> '';
