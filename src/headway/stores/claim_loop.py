"""The claim loop: leases jobs by a plan, take after take, job after job.

SQLite and the memory store run it. PostgreSQL has it in PL/pgSQL, and Redis in Lua.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from headway.core.lease import Lease
from headway.core.policy.enforced import RuleIndex
from headway.core.snapshot import PlanWalk, Take
from headway.stores.base import SKIPPED_MAX


class WaitingJobs(Protocol):
    """The waiting jobs of one class, and what a store does with them during a claim."""

    on_ladder: bool  # Whether ``has_room`` must be asked for each job.

    def next(self) -> Sequence[Any]:
        """Return the next jobs in order, or none at the end. The loop handles all of them before it calls again."""
        ...

    def times(self, job: Any, /) -> tuple[Any, Any]:
        """Return since when a job waits, and when it expires, if it does."""
        ...

    async def expire(self, job: Any, /) -> None:
        """Cancel a job that has expired."""
        ...

    def has_room(self) -> bool:
        """Return whether the ladder has room for another job of the class."""
        ...

    def start(self, job: Any, /) -> Lease | None:
        """Lease a job. If a limit has no room, move the job to the blocked queue of that limit and return None."""
        ...


async def claim_takes(
    takes: Iterable[Take],
    walk: PlanWalk,
    rules: RuleIndex,
    take_jobs: Callable[[Take, int], Awaitable[tuple[list[Lease], bool]]],
) -> tuple[list[Lease], bool]:
    """Claim the takes of a plan. Return the leases, and whether a take has more jobs that it did not look at."""
    leases: list[Lease] = []
    more = False
    for take in takes:
        want = walk.most(take)
        if want <= 0 or rules.lane_paused(take.key.lane):
            continue
        taken, stopped = await take_jobs(take, want)
        more = more or stopped
        leases += taken
        walk.claimed(take, len(taken))
    return leases, more


async def claim_class(jobs: WaitingJobs, take: Take, want: int, now_at: int) -> tuple[list[Lease], bool]:
    """Lease up to ``want`` jobs of a class. Return the leases, and whether it stopped after ``SKIPPED_MAX`` others."""
    leases: list[Lease] = []
    skipped = 0
    times, on_ladder, start, until_at = jobs.times, jobs.on_ladder, jobs.start, take.until_at
    while batch := jobs.next():
        for job in batch:
            eligible_at, expires_at = times(job)
            if until_at is not None and eligible_at > until_at:
                return leases, False
            if skipped == SKIPPED_MAX:
                return leases, True
            if expires_at is not None and expires_at <= now_at:
                await jobs.expire(job)
                skipped += 1
                continue
            if on_ladder and not jobs.has_room():
                return leases, False
            lease = start(job)
            if lease is None:
                skipped += 1
                continue
            leases.append(lease)
            if len(leases) == want:
                return leases, False
    return leases, False
