"""Counts of waiting tasks by lane and reason, and by duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from headway.core.diagnostics import QueueDiagnostics
from headway.core.policy.document import ELASTIC, Policy
from headway.core.policy.wait_reasons import blocked_queue_reason
from headway.core.policy.why import CLASS_CODES, class_reasons
from headway.core.snapshot import Snapshot
from headway.metrics.documents import OTHER
from headway.metrics.series import in_proportion
from headway.metrics.text_format import Labels, MetricFamily, by_label, gauges
from headway.stores.base import BlockedStats, Stats


def waiting_by_reason(
    stats: Stats, queue: QueueDiagnostics, policy: Policy, blocked: Mapping[str, BlockedStats]
) -> dict[str, dict[str, int]]:
    """Return how many tasks of each lane wait for each reason, by class and by blocked queue.

    Delayed and held tasks do not count. A class counts its tasks up to a bound, so the classes of a lane get their
    proportion of the tasks that no blocked queue has.
    """
    reasons = class_reasons(queue, policy)
    classes: dict[str, Counter[str]] = {name: Counter() for name in stats.lanes}
    for view in queue.snapshot.classes:
        if view.waiting:
            classes.setdefault(view.key.lane, Counter())[reasons[view.key]] += view.waiting
    held_back: dict[str, Counter[str]] = {name: Counter() for name in classes}
    for key, one in blocked.items():
        rule = queue.rules.limits.get(key.partition("=")[0])
        code = blocked_queue_reason(key, is_rate=rule is not None and rule.count is not None)
        for lane, waiting in one.lanes.items():
            held_back.setdefault(lane, Counter())[code] += waiting
    found: dict[str, dict[str, int]] = {}
    for lane, counts in held_back.items():
        waiting = stats.lanes[lane].waiting if lane in stats.lanes else 0
        rest = max(0, waiting - counts.total())  # The reads are of different moments.
        counts.update(in_proportion(rest, classes.get(lane, {})))
        found[lane] = {code: count for code, count in counts.items() if count}
    return found


def waiting_families(
    stats: Stats, queue: QueueDiagnostics, policy: Policy, blocked: Mapping[str, BlockedStats]
) -> Iterator[MetricFamily]:
    """Yield the metrics of what waits, by reason and by duration."""
    yield _waiting(waiting_by_reason(stats, queue, policy, blocked), policy)
    yield from _ladder(queue.snapshot, policy)


def _waiting(found: Mapping[str, Mapping[str, int]], policy: Policy) -> MetricFamily:
    """Return the waiting tasks by the reason why they wait. Each lane has every reason, so that none appears anew."""
    counts: dict[Labels, float] = {
        (("priority", lane), ("reason", code)): 0 for lane in policy.lanes for code in CLASS_CODES
    }
    for lane, codes in found.items():
        for code, count in codes.items():
            at = (("priority", lane if lane in policy.lanes else OTHER), ("reason", code))
            counts[at] = counts.get(at, 0) + count
    return gauges("headway_queue_waiting", "Tasks waiting, by the first reason why they wait.", list(counts.items()))


def _ladder(snapshot: Snapshot, policy: Policy) -> Iterator[MetricFamily]:
    """Yield the running and waiting tasks of each duration, and how many may run. Without a ladder there is none."""
    rungs, running = policy.ladder.rungs, snapshot.running_jobs
    known = running is not None and len(running.counts) == len(rungs)
    counts, slots = (running.counts, running.slots) if running is not None and known else ([0] * len(rungs), 0)
    names = [rung.name for rung in rungs]
    waiting = dict.fromkeys([*names, ELASTIC] if rungs else (), 0)
    for view in snapshot.classes:
        if rungs and view.key.rung is not None and view.waiting:
            name = view.key.rung if view.key.rung in waiting else OTHER
            waiting[name] = waiting.get(name, 0) + view.waiting
    most = {rung.name: rung.most(slots) for rung in rungs}
    limits = {name: limit for name, limit in most.items() if limit is not None}
    yield gauges(
        "headway_ladder_running",
        "Tasks executing, by the duration that each was assigned.",
        by_label("duration", dict(zip(names, counts, strict=True))),
    )
    yield gauges(
        "headway_ladder_waiting",
        "Tasks waiting, by the duration that each asked for, up to 1000 in each class.",
        by_label("duration", waiting),
    )
    yield gauges(
        "headway_ladder_limit",
        "How many tasks of this duration and longer ones may execute at once.",
        by_label("duration", limits),
    )
