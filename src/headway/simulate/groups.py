"""Waits by group: lane, tenant, task or duration."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.core.policy.document import ELASTIC
from headway.simulate.job import SimulatedJob
from headway.simulate.outcome import NEVER, Outcome

BY = ("lane", "tenant", "task", "duration")
NO_TENANT = "none"  # The key of jobs without a tenant.
PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
METRICS = (*PARTS, "max", "mean")
WITHIN = (1, 10, 60)  # Seconds.

# By group: the number of the replay and of the job, for each job that belongs to it.
Members = dict[str, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The waits of the jobs of one group, in seconds. ``busy``: its part of the busy slots.

    ``waiting`` counts jobs that never started. They are not in the waits.
    """

    by: str
    key: str
    jobs: int
    p50: float
    p90: float
    p99: float
    max: float
    mean: float
    started_within: Mapping[int, float]
    busy: float
    waiting: int = 0


def members_by(by: str, jobs: Sequence[Sequence[SimulatedJob]], outcomes: Sequence[Outcome]) -> Members:
    """Return the jobs of each group, over one or more replays."""
    found: Members = {}
    for number, (replayed, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
        if by == "lane":
            for index, lane in enumerate(outcome.lanes):
                if replayed[index].counted:
                    found.setdefault(lane, []).append((number, index))
        else:
            key = _KEYS[by]
            for index, job in enumerate(replayed):
                if job.counted:
                    found.setdefault(key(job), []).append((number, index))
    return found


_KEYS: Mapping[str, Callable[[SimulatedJob], str]] = {
    "tenant": lambda job: NO_TENANT if job.tenant is None else job.tenant,
    "task": lambda job: job.task,
    "duration": lambda job: job.duration or ELASTIC,
}


def quantile(ordered: Sequence[int], part: float) -> int:
    """Return the value that this part of the sorted values does not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


def figures_of(
    by: str, key: str, members: Sequence[tuple[int, int]], outcomes: Sequence[Outcome], busy_ms: int
) -> GroupFigures:
    """Return the figures of one group."""
    waits = sorted(waits_of(members, outcomes))
    count = len(waits)
    own_ms = sum(outcomes[number].busy[index] for number, index in members)
    p50, p90, p99 = (quantile(waits, part) / 1_000 for part in PARTS.values())
    return GroupFigures(
        by,
        key,
        len(members),
        p50,
        p90,
        p99,
        waits[-1] / 1_000 if waits else 0.0,
        sum(waits) / count / 1_000 if waits else 0.0,
        {bound: bisect_right(waits, bound * 1_000) / max(1, count) for bound in WITHIN},
        own_ms / busy_ms if busy_ms else 0.0,
        len(members) - count,
    )


def waits_of(members: Sequence[tuple[int, int]], outcomes: Sequence[Outcome]) -> array[int]:
    """Return the waits of the jobs that started, in milliseconds."""
    found = array("q")
    for number, index in members:
        wait = outcomes[number].waits[index]
        if wait != NEVER:
            found.append(wait)
    return found
