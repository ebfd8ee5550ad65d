"""The queue as it is now, in the values that dashboards show: lanes, slots and reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from headway.core.diagnostics import QueueDiagnostics
from headway.core.job import FAILED_STATES, ClassKey, State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import EstimateRequest, Forecast
from headway.core.policy.guarantees import guaranteed_slots
from headway.core.policy.positions import waiting_in
from headway.core.policy.why import class_reasons
from headway.core.timestamps import write_moment
from headway.estimates.accuracy import AccuracySummary
from headway.metrics.export import idle_reserve
from headway.metrics.series import ALL, MINUTE_MS, SeriesStep, wait_quantile
from headway.metrics.waiting import waiting_by_reason
from headway.server.serializers import estimate_values
from headway.stores.base import BlockedStats, LaneStats, Stats

RECENT_MINUTES = 5  # Minutes whose starts make the waits of "now".


class SlowFacts(NamedTuple):
    """What changes slowly: the last hour by the minute, and the accuracy of estimates."""

    steps: Sequence[SeriesStep]
    accuracy: Mapping[str, AccuracySummary]


def overview_values(
    stats: Stats, forecast: Forecast, policy: Policy, slow: SlowFacts, blocked: Mapping[str, BlockedStats]
) -> dict[str, Any]:
    """Return the queue as it is now."""
    queue, live = forecast.queue, stats.live_workers
    oldest = [lane.oldest_at for lane in stats.lanes.values() if lane.oldest_at is not None and lane.waiting]
    slots = slot_values(stats, policy)
    lanes = _lane_values(stats, forecast, policy, slow, slots["total"])
    slots["lent"] = round(sum(lane["slots"]["borrowed"] for lane in lanes), 2)
    return {
        "at": write_moment(stats.now_at),
        "waiting": sum(lane.waiting for lane in stats.lanes.values()),
        "delayed": sum(lane.delayed for lane in stats.lanes.values()),
        "running": sum(lane.executing for lane in stats.lanes.values()),
        "oldest_at": write_moment(min(oldest)) if oldest else None,
        "failed_last_hour": sum(_failed(step) for step in slow.steps),
        "workers": len(live),
        "dead_letters": stats.kept.get(State.DEAD_LETTER, 0),
        "lanes": lanes,
        "slots": slots,
        "waiting_by_reason": _waiting_by_reason(stats, queue, policy, blocked),
        "accuracy": {lane: asdict(one) for lane, one in slow.accuracy.items()},
        "paused": queue.rules.paused.names(),
    }


def slot_values(stats: Stats, policy: Policy) -> dict[str, Any]:
    """Return the slots of live workers, cut into used, reserved and free."""
    live, reserve = stats.live_workers, policy.reserve
    total, used = sum(worker.slots for worker in live), sum(worker.running for worker in live)
    reserved = min(total, reserve.slots) if reserve.scope == "pool" else sum(worker.reserved for worker in live)
    inside = sum(lane.executing for name, lane in stats.lanes.items() if name in reserve.lanes)
    return {
        "total": total,
        "used": used,
        "free": max(0, total - used),
        "reserved": reserved,
        "reserved_used": min(reserved, inside),
        "reserved_idle": idle_reserve(live, stats.lanes, policy),
    }


def _lane_values(
    stats: Stats, forecast: Forecast, policy: Policy, slow: SlowFacts, total: int
) -> list[dict[str, Any]]:  # fmt: skip
    queue, sure = forecast.queue, guaranteed_slots(policy, total, len(stats.live_workers))
    reasons = class_reasons(queue, policy)
    recent = _recent(slow.steps, stats.now_at)
    found = []
    for name in sorted({*policy.lanes, *stats.lanes}, key=lambda name: (_level(policy, name), name)):
        lane, declared = stats.lanes.get(name, LaneStats()), policy.lanes.get(name)
        row = recent.lanes.get(name) if recent is not None else None
        codes: Counter[str] = Counter()
        for view in queue.snapshot.classes:
            if view.key.lane == name and view.key in reasons:
                codes[reasons[view.key]] += view.waiting
        last = slow.steps[-1].lanes.get(name) if slow.steps else None
        found.append(
            {
                "name": name,
                "level": _level(policy, name),
                "weight": 1 if declared is None else declared.weight,
                "paused": queue.rules.paused.everything or name in queue.rules.paused.lanes,
                "waiting": lane.waiting,
                "delayed": lane.delayed,
                "running": lane.executing,
                "oldest_at": write_moment(lane.oldest_at) if lane.waiting else None,
                "wait_p50": None if row is None else wait_quantile(row.waits, 0.5),
                "wait_p90": None if row is None else wait_quantile(row.waits, 0.9),
                "started_last_minute": 0 if last is None else last.started,
                "why": codes.most_common(1)[0][0] if codes else None,
                "starts_in": None if declared is None else lane_estimate(forecast, name),
                "slots": _lane_slots(sure.get(name, 0.0), lane, stats),
            }
        )
    return found


def lane_estimate(forecast: Forecast, lane: str) -> dict[str, Any] | None:
    """Return when a task that is submitted to a lane now would start."""
    key = ClassKey(lane)
    return estimate_values(forecast.near(EstimateRequest(key, ahead=waiting_in(forecast.queue.snapshot, key))))


def _level(policy: Policy, name: str) -> int:
    return policy.lanes[name].level if name in policy.lanes else 1_000_000


def _lane_slots(sure: float, lane: LaneStats, stats: Stats) -> dict[str, Any]:
    used = lane.executing
    others = sum(other.executing for other in stats.lanes.values()) - used
    lent = max(0.0, sure - used) if not lane.waiting else 0.0
    return {
        "guaranteed": round(sure, 2),
        "used": used,
        "borrowed": round(max(0.0, used - sure), 2),
        "lent": round(min(lent, others), 2),
    }


def _waiting_by_reason(
    stats: Stats, queue: QueueDiagnostics, policy: Policy, blocked: Mapping[str, BlockedStats]
) -> dict[str, int]:
    """Return how many tasks wait for each reason, of all lanes and with the delayed ones."""
    found = Counter[str]()
    for counts in waiting_by_reason(stats, queue, policy, blocked).values():
        found.update(counts)
    delayed = sum(lane.delayed for lane in stats.lanes.values())
    if delayed:
        found["scheduled"] = delayed
    return dict(found)


def _recent(steps: Sequence[SeriesStep], now_at: int) -> SeriesStep | None:
    """Return the last minutes as one step."""
    found: SeriesStep | None = None
    for step in steps:
        if step.at >= now_at - (RECENT_MINUTES + 1) * MINUTE_MS:
            if found is None:
                found = SeriesStep(step.at, 0, 0, {})
            found.add(step)
    return found


def _failed(step: SeriesStep) -> int:
    row = step.lanes.get(ALL)
    return 0 if row is None else sum(row.ended.get(end, 0) for end in FAILED_STATES)
