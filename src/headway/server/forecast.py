"""Forecasts of another policy or number of slots: waits before and after, by lane, tenant and limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headway.core.diagnostics import LimitView
from headway.core.job import ClassKey
from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.enforced import PAUSE
from headway.core.policy.estimate import EstimateRequest, Forecast
from headway.server.overview_values import lane_estimate
from headway.server.serializers import estimate_values
from headway.stores.base import BlockedStats

LIMITS_SHOWN = 8  # Limits that a forecast shows: those for which the most jobs wait.


class ForecastComparison:
    """A forecast before a change and one after it."""

    def __init__(self, now: Forecast, policy: Policy, then: Forecast, new: Policy) -> None:
        self._now, self._policy = now, policy
        self._then, self._new = then, new

    def lanes(self) -> dict[str, Any]:
        """Return when a task that is submitted now would start, by lane."""
        before, after = self._policy.lanes, self._new.lanes
        return {
            name: {
                "before": lane_estimate(self._now, name) if name in before else None,
                "after": lane_estimate(self._then, name) if name in after else None,
            }
            for name in dict.fromkeys([*before, *after])
        }

    def tenants(self, lanes: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, Any]]:
        """Yield when the next task of each tenant would start, in the lane where most of its tasks wait.

        ``lanes``: how many tasks of each tenant wait in each lane.
        """
        for tenant, waiting in lanes.items():
            lane = max(waiting, key=lambda name: waiting[name], default=None)
            if lane is None:
                continue
            beside = {other: mine[lane] for other, mine in lanes.items() if lane in mine}
            yield {
                "tenant": tenant,
                "lane": lane,
                "waiting": waiting[lane],
                "before": _tenant_estimate(self._now, self._policy, lane, tenant, beside),
                "after": _tenant_estimate(self._then, self._new, lane, tenant, beside),
            }

    def limits(self, blocked: Mapping[str, BlockedStats]) -> Iterator[dict[str, Any]]:
        """Yield when the last task that waits for each limit would start."""
        keys = [key for key in blocked if not key.startswith(PAUSE)]
        for key in sorted(keys, key=lambda name: -blocked[name].waiting)[:LIMITS_SHOWN]:
            yield {
                "limit": key,
                "waiting": blocked[key].waiting,
                "before": _limit_estimate(self._now, key, blocked[key]),
                "after": _limit_estimate(self._then, key, blocked[key]),
            }


def tenant_place(tenant: str, beside: Mapping[str, int], policy: Policy) -> tuple[int, int]:
    """Return how many tasks go before the next one of a tenant, and how many of them are its own.

    Fair shares let each other tenant start as many tasks meanwhile as its weight allows, if tasks run equally long.
    """
    weights, own = policy.tenants, beside.get(tenant, 0)
    turns = (own + 1) / weights.weights.get(tenant, weights.default_weight)
    others = [
        min(waiting, int(turns * weights.weights.get(other, weights.default_weight)))
        for other, waiting in beside.items()
        if other != tenant
    ]
    return own + sum(others), own


def _tenant_estimate(
    forecast: Forecast, policy: Policy, lane: str, tenant: str, beside: Mapping[str, int]
) -> dict[str, Any] | None:
    if lane not in policy.lanes:
        return None
    views = [view for view in forecast.queue.snapshot.classes if view.key.lane == lane]
    key = max(views, key=lambda view: view.waiting).key if views else ClassKey(lane)
    ahead, own = tenant_place(tenant, beside, policy)
    return estimate_values(forecast.near(EstimateRequest(key, "", tenant, ahead, own)))


def _limit_estimate(forecast: Forecast, key: str, blocked: BlockedStats) -> dict[str, Any] | None:
    """Return when the last task that waits for a limit starts. Takes it for one like most that run."""
    queue = forecast.queue
    rule = queue.rules.limits.get(key.partition("=")[0])
    holders = [job for job in queue.executing if key in job.held]
    if not holders:
        return None
    (task, lane), _ = Counter((job.task, job.lane) for job in holders).most_common(1)[0]
    request = EstimateRequest(ClassKey(lane), task, ahead=max(0, blocked.waiting - 1))
    if rule is not None:
        request = _behind_limit(request, key, rule, len(holders), blocked)
    return estimate_values(forecast.of(request))


def _behind_limit(
    request: EstimateRequest, key: str, rule: LimitRule, running: int, blocked: BlockedStats
) -> EstimateRequest:
    """Return the request of the last task that waits for a limit.

    A forecast knows when running tasks end, and lets as many others start. If the limit allows more than run now, some
    start at once and the others take fewer turns. If it allows less, they take more.
    """
    turns, counted = request.ahead, rule
    if rule.concurrency:
        left = turns - max(0, rule.concurrency - running)
        if left < 0 and rule.count is None:
            return request
        turns = round(max(0, left) * running / rule.concurrency)
        counted = replace(rule, concurrency=running)
    view = LimitView(key, counted, running, blocked.open_at)
    return request._replace(ahead=turns, blocked_by=key, limits=(view,))
