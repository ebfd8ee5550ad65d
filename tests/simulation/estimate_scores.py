"""Scores of estimates: runs a workload, estimates the starts of some jobs, and compares them with the real starts.

The player learns as a worker and a server do: it notes each job that ends, keeps that in the store, and reads it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple

from headway.core.lease import Lease, Report
from headway.core.policy.document import Policy
from headway.estimates.accuracy import LONG, is_scored
from headway.estimates.forecaster import Forecaster
from headway.estimates.history import DurationHistory
from tests.simulation.driver import Player
from tests.simulation.workload import GROUPS, Work

WARM_UP = 1_800.0  # Seconds without scores, in which the player only learns.
BLOCK = 7_200.0  # Seconds: each of the largest bursts of the workload is in a block of its own.
ASKED = 7  # One job in seven is estimated, which keeps a run short.


class ScoredEstimate(NamedTuple):
    """The estimate that a job had when it arrived, and how long it then waited."""

    work: Work
    p50: float
    p90: float
    waited: float
    seed: int = 0

    @property
    def block(self) -> tuple[int, int]:
        """Return the two hours of a run that the job belongs to. Jobs of other blocks waited in other bursts."""
        return self.seed, int(self.work.arrives // BLOCK)

    @property
    def counts(self) -> bool:
        """Return whether to score the estimate. Correct estimates of "now" are skipped."""
        return is_scored(self.p90, self.waited)


class Accuracy(NamedTuple):
    """The accuracy of estimates. ``error`` is the median relative error of p50, for waits over 5 s.

    ``noise``: half of the 95 % intervals of the two shares. Jobs of one burst wait alike, so blocks count, not jobs.
    """

    scored: int
    within_p50: float
    within_p90: float
    long: int
    error: float
    noise: tuple[float, float] = (0.0, 0.0)

    def __str__(self) -> str:
        shares = zip((self.within_p50, self.within_p90), self.noise, strict=True)
        found = " | ".join(f"{share:.1%} ± {noise:.1%}" for share, noise in shares)
        return f"{self.scored} | {found} | {self.long} | {self.error:.2f}"


def score_estimates(policy: Policy, works: Sequence[Work], seed: int = 0) -> tuple[list[ScoredEstimate], int]:
    """Run a workload under a policy. Return the estimates, and the number of jobs without one."""
    player = _EstimatingPlayer(policy, works)
    asyncio.run(player.play())
    return [one._replace(seed=seed) for one in player.estimates], player.unknown


def accuracy(estimates: Iterable[ScoredEstimate], belongs: Callable[[Work], bool] = lambda _: True) -> Accuracy:
    """Return the accuracy of the estimates of some jobs."""
    scored = [one for one in estimates if one.counts and belongs(one.work)]
    errors = [abs(one.p50 - one.waited) / one.waited for one in scored if one.waited > LONG]
    count = max(1, len(scored))
    return Accuracy(
        len(scored),
        sum(one.waited <= one.p50 for one in scored) / count,
        sum(one.waited <= one.p90 for one in scored) / count,
        len(errors),
        median(errors) if errors else 0.0,
        (_noise(scored, lambda one: one.p50), _noise(scored, lambda one: one.p90)),
    )


def _noise(scored: Sequence[ScoredEstimate], bound: Callable[[ScoredEstimate], float]) -> float:
    """Return half of the 95 % interval of the share of jobs that started within a bound."""
    blocks: dict[tuple[int, int], list[bool]] = {}
    for one in scored:
        blocks.setdefault(one.block, []).append(one.waited <= bound(one))
    if len(blocks) < 2:
        return 0.0
    share = sum(map(sum, blocks.values())) / len(scored)
    squares = sum((sum(within) - share * len(within)) ** 2 for within in blocks.values())
    return 1.96 * sqrt(squares * len(blocks) / (len(blocks) - 1)) / len(scored)


def accuracy_table(estimates: Sequence[ScoredEstimate]) -> str:
    """Return a table of the accuracy by group."""
    lines = ["| | scored | within p50 | within p90 | waits over 5 s | error |", "|---|---|---|---|---|---|"]
    lines.append(f"| all | {accuracy(estimates)} |")
    for name, belongs in GROUPS.items():
        if (found := accuracy(estimates, belongs)).scored:
            lines.append(f"| {name} | {found} |")
    return "\n".join(lines)


class _EstimatingPlayer(Player):
    """A player that estimates some jobs right after their submit."""

    def __init__(self, policy: Policy, works: Sequence[Work]) -> None:
        super().__init__(policy, works)
        self.estimates: list[ScoredEstimate] = []
        self.unknown = 0
        self._waiting: dict[int, tuple[float, float]] = {}
        self._history = DurationHistory(self._seconds)
        self._forecaster = Forecaster(self._seconds)
        self._submitted = 0

    def _seconds(self) -> float:
        return self.clock() / 1_000

    async def submit(self, work: Work) -> None:
        await super().submit(work)
        self._submitted += 1
        await self._history.publish(self.store)  # When it is due, as a worker does, so that older arrivals count less.
        if self._submitted % ASKED or work.arrives < WARM_UP:
            return
        diagnosis = await self.store.diagnose_job(next(reversed(self.by_id)))
        assert diagnosis is not None
        estimate = await self._forecaster.estimate(self.store, diagnosis, self.policy)
        assert estimate is not None
        if estimate.p50 is None or estimate.p90 is None:
            self.unknown += 1
        else:
            self._waiting[work.number] = (estimate.p50, estimate.p90)

    def start(self, lease: Lease) -> None:
        super().start(lease)
        work = self.by_id[lease.job_id]
        if (estimate := self._waiting.pop(work.number, None)) is not None:
            self.estimates.append(ScoredEstimate(work, *estimate, self.waits[work.number]))

    def end(self, lease: Lease) -> Report:
        self._history.note([(lease, self.by_id[lease.job_id].seconds)])
        return super().end(lease)
