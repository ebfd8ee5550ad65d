"""Tenants in the values that dashboards show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from headway.core.diagnostics import QueueDiagnostics
from headway.core.policy.document import TENANT, LimitRule, Policy
from headway.core.timestamps import write_moment
from headway.estimates.history import TenantUse
from headway.stores.base import TenantStats


def tenant_values(
    rows: Mapping[str, TenantStats], use: Mapping[str, TenantUse], queue: QueueDiagnostics, policy: Policy
) -> list[dict[str, Any]]:
    """Return the tenants with work now or in the last hour, the one that suffers most first."""
    weights, paused = policy.tenants, queue.rules.paused
    active = {
        name for name in {*rows, *use} if name and (use.get(name, TenantUse()).jobs >= 0.5 or any(rows.get(name, ())))
    }
    whole = sum(weights.weights.get(name, weights.default_weight) for name in active)
    ran = sum(use[name].seconds for name in active if name in use)
    full = _full_keys(queue)
    found = []
    for name in active:
        row, had, weight = (
            rows.get(name, TenantStats()),
            use.get(name),
            weights.weights.get(name, weights.default_weight),
        )
        entitled = weight / whole
        share = None if not ran else (0.0 if had is None else had.seconds / ran)
        found.append(
            {
                "tenant": name,
                "weight": weight,
                "paused": paused.everything or name in paused.tenants,
                "entitled_share": round(entitled, 4),
                "had_share": None if share is None else round(share, 4),
                "unfairness": round(max(0.0, entitled - (share or 0.0)), 4) if row.waiting else 0.0,
                "running": row.running,
                "waiting": row.waiting,
                "oldest_at": write_moment(row.oldest_at),
                "wait_p50": None if had is None else had.waited(0.5),
                "wait_p90": None if had is None else had.waited(0.9),
                "limits_at_cap": sorted(key for key, rule in full.items() if _tenant_of(key, rule) == name),
            }
        )
    return sorted(found, key=lambda one: (-one["unfairness"], -one["waiting"], one["tenant"]))


def _full_keys(queue: QueueDiagnostics) -> dict[str, LimitRule]:
    """Return the counters that have no room."""
    held = Counter(key for job in queue.executing for key in job.held)
    found = {}
    for key, count in held.items():
        rule = queue.rules.limits.get(key.partition("=")[0])
        if rule is not None and rule.concurrency is not None and count >= rule.concurrency:
            found[key] = rule
    return found


def _tenant_of(key: str, rule: LimitRule) -> str | None:
    """Return the tenant that a counter belongs to."""
    _, _, rest = key.partition("=")
    if rule.by == TENANT:
        return rest
    tenant, separated, _ = rest.partition("=")
    return tenant.replace("%3D", "=").replace("%25", "%") if separated else None
