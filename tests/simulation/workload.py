"""The workload: bursts, short and long jobs mixed, many tenants. It keeps eight slots busy for four fifths of the time.

Six small tenants make calls (high) and mixed work (medium), two make long reports (low). Over that come batches: a bulk
tenant every ten minutes, a storm every two hours, a burst of calls every quarter of an hour. The flood is one tenant
that leaves eight hours' worth of slow reports within one minute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SLOTS = 8
HOUR = 3_600
LANES = ("high", "medium", "low")
LADDER = {"fast": 3.0, "medium": 10.0, "slow": 30.0}  # Seconds of each rung; "default" has none of its own.

SMALL = ("s0", "s1", "s2", "s3", "s4", "s5")
REPORTERS = ("n0", "n1")
BULK = ("bulk", "storm")
FLOODER = "flood"


@dataclass(frozen=True, slots=True)
class Work:
    """One job of a workload: its arrival, lane, tenant and length. All times are seconds from the start."""

    number: int
    task: str
    lane: str
    tenant: str
    rung: str
    seconds: float
    arrives: float
    batch: str | None = None


class _Stream(NamedTuple):
    """Single jobs at random moments, at a rate per second."""

    rate: float
    lane: str
    tenants: Sequence[str]
    task: str


class _Burst(NamedTuple):
    """Many jobs within a short time, repeated."""

    every: int
    first: int
    size: int
    within: int
    lane: str
    tenant: str
    task: str


_ANY = "any"  # Drawn from the four kinds of work below.
_KINDS = {"thumb": 60, "clip": 10, "render": 10, "mixed": 20}

_STREAMS = (
    _Stream(0.45, "high", SMALL, "api"),
    _Stream(0.42, "medium", SMALL, _ANY),
    _Stream(0.095, "low", REPORTERS, "report"),
)
_BURSTS = (
    _Burst(600, 360, 220, 10, "medium", "bulk", _ANY),
    _Burst(7_200, 4_320, 1_300, 60, "medium", "storm", _ANY),
    _Burst(900, 540, 60, 5, "high", "s0", "api"),
)
_FLOOD = _Burst(10**9, HOUR, 1_500, 60, "low", FLOODER, "report")


def make_workload(seed: int, hours: int, *, flood: bool = False) -> list[Work]:
    """Return the jobs of this many hours, in the order of arrival. Equal seeds give equal jobs."""
    source = _Source(seed, until=hours * HOUR)
    for stream in _STREAMS:
        source.add_stream(stream)
    for burst in (*_BURSTS, _FLOOD) if flood else _BURSTS:
        source.add_burst(burst)
    return sorted(source.works, key=lambda work: work.arrives)


def expected_seconds(works: Sequence[Work]) -> dict[str, float]:
    """Return the mean length of each task's jobs, as learned from many of them."""
    lengths: dict[str, list[float]] = {}
    for work in works:
        lengths.setdefault(work.task, []).append(work.seconds)
    return {task: sum(found) / len(found) for task, found in lengths.items()}


class _Source:
    """Draws jobs from one random source. The order of draws must not change, because it defines the workload."""

    def __init__(self, seed: int, *, until: int) -> None:
        self.works: list[Work] = []
        self._random = random.Random(seed)
        self._until = until

    def add_stream(self, stream: _Stream) -> None:
        arrives = self._random.expovariate(stream.rate)
        while arrives < self._until:
            tenant = self._random.choice(stream.tenants)
            self._add(arrives, stream.lane, tenant, stream.task)
            arrives += self._random.expovariate(stream.rate)

    def add_burst(self, burst: _Burst) -> None:
        for begins in range(burst.first, self._until, burst.every):
            for _ in range(burst.size):
                arrives = begins + self._random.uniform(0, burst.within)
                self._add(arrives, burst.lane, burst.tenant, burst.task, f"{burst.tenant}@{begins}")

    def _add(self, arrives: float, lane: str, tenant: str, task: str, batch: str | None = None) -> None:
        if task == _ANY:
            [task] = self._random.choices(list(_KINDS), list(_KINDS.values()))
        seconds, rung = self._length(task)
        self.works.append(Work(len(self.works), task, lane, tenant, rung, seconds, arrives, batch))

    def _length(self, task: str) -> tuple[float, str]:
        """Draw every length, used or not, so that each job takes equally many numbers from the random source."""
        short = min(max(self._random.expovariate(1 / 1.2), 0.05), LADDER["fast"])
        long = self._random.uniform(10, 30)
        middle = self._random.uniform(3, 10)
        is_short = self._random.random() < 0.85
        match task:
            case "api" | "thumb":
                return short, "fast"
            case "clip":
                return middle, "medium"
            case "render" | "report":
                return long, "slow"
            case _:
                return short if is_short else long, "default"


Group = Callable[[Work], bool]

# Who waits, as the tables show it. "low" are the tenants that do not flood.
GROUPS: dict[str, Group] = {
    "high": lambda work: work.lane == "high",
    "medium, small tenants": lambda work: work.lane == "medium" and work.tenant not in BULK,
    "medium, bulk tenants": lambda work: work.tenant in BULK,
    "low": lambda work: work.lane == "low" and work.tenant != FLOODER,
    "the flooder": lambda work: work.tenant == FLOODER,
}
