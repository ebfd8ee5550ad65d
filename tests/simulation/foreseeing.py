"""Runs a workload and asks, as jobs come, when they will start; then compares that with when they did.

Everything learned goes the way it goes in a worker and a server: noted when a job ends, kept in the store, read there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from headway.core.lease import Lease, Report
from headway.core.policy.document import Policy
from headway.estimates.accuracy import LONG, is_scored
from headway.estimates.forecaster import Forecaster
from headway.estimates.history import DurationHistory
from tests.simulation.driver import Player
from tests.simulation.workload import GROUPS, Work

WARM_UP = 1_800.0  # Seconds in which only lessons are learned.
ASKED = 7  # One in this many jobs.


class Foreseen(NamedTuple):
    """What was said of a job when it came, and how long it then waited."""

    work: Work
    p50: float
    p90: float
    waited: float

    @property
    def counts(self) -> bool:
        """Return whether it is scored: a job that was said to start now, and did, says nothing."""
        return is_scored(self.p90, self.waited)


class Figures(NamedTuple):
    """How estimates turned out. ``error``: the median of the part by which p50 was off, of waits over 5 s."""

    scored: int
    within_p50: float
    within_p90: float
    long: int
    error: float

    def __str__(self) -> str:
        return f"{self.scored} | {self.within_p50:.0%} | {self.within_p90:.0%} | {self.long} | {self.error:.2f}"


def foresee(policy: Policy, works: Sequence[Work]) -> tuple[list[Foreseen], int]:
    """Run a workload through a policy. Gives what was foreseen, and of how many jobs nothing could be said."""
    player = _Foreseer(policy, works)
    asyncio.run(player.play())
    return player.foreseen, player.unknown


def figures(foreseen: Iterable[Foreseen], belongs: Callable[[Work], bool] = lambda _: True) -> Figures:
    """Sum up how estimates turned out."""
    scored = [one for one in foreseen if one.counts and belongs(one.work)]
    errors = [abs(one.p50 - one.waited) / one.waited for one in scored if one.waited > LONG]
    count = max(1, len(scored))
    return Figures(
        len(scored),
        sum(one.waited <= one.p50 for one in scored) / count,
        sum(one.waited <= one.p90 for one in scored) / count,
        len(errors),
        median(errors) if errors else 0.0,
    )


def figures_table(foreseen: Sequence[Foreseen]) -> str:
    """Write figures by group."""
    lines = ["| | scored | within p50 | within p90 | waits over 5 s | error |", "|---|---|---|---|---|---|"]
    lines.append(f"| all | {figures(foreseen)} |")
    for name, belongs in GROUPS.items():
        if (found := figures(foreseen, belongs)).scored:
            lines.append(f"| {name} | {found} |")
    return "\n".join(lines)


class _Foreseer(Player):
    """Asks for an estimate of some jobs right after they were submitted."""

    def __init__(self, policy: Policy, works: Sequence[Work]) -> None:
        super().__init__(policy, works)
        self.foreseen: list[Foreseen] = []
        self.unknown = 0
        self._said: dict[int, tuple[float, float]] = {}
        self._lessons = DurationHistory(self._seconds)
        self._forecaster = Forecaster(self._seconds)
        self._submitted = 0

    def _seconds(self) -> float:
        return self.clock() / 1_000

    async def submit(self, work: Work) -> None:
        await super().submit(work)
        self._submitted += 1
        await self._lessons.publish(self.store)  # When it is due, as a worker does, so that older arrivals count less.
        if self._submitted % ASKED or work.arrives < WARM_UP:
            return
        diagnosis = await self.store.diagnose_job(next(reversed(self.by_id)))
        assert diagnosis is not None
        said = await self._forecaster.estimate(self.store, diagnosis, self.policy)
        assert said is not None
        if said.p50 is None or said.p90 is None:
            self.unknown += 1
        else:
            self._said[work.number] = (said.p50, said.p90)

    def start(self, lease: Lease) -> None:
        super().start(lease)
        work = self.by_id[lease.job_id]
        if (said := self._said.pop(work.number, None)) is not None:
            self.foreseen.append(Foreseen(work, *said, self.waits[work.number]))

    def end(self, lease: Lease) -> Report:
        self._lessons.note([(lease, self.by_id[lease.job_id].seconds)])
        return super().end(lease)
