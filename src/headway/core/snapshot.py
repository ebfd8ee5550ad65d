"""The snapshot that policies read, and the plan that they return."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.job import ClassKey
from headway.core.policy.ladder import RunningJobs


class ClassView(NamedTuple):
    """One class in a snapshot.

    ``waiting`` counts the jobs that no limit of their own holds back. It is exact up to a store's bound and a lower
    bound beyond. Jobs in a blocked queue whose limit has room again count once for each such limit.
    ``oldest_at`` is when the oldest of them began to wait, ``head_key`` the order key of the first one, ``blocked`` the
    reason why no job of the class can start on any worker.
    """

    key: ClassKey
    waiting: int
    oldest_at: int | None
    head_key: int = 0
    fair: bool = False
    blocked: str | None = None  # paused | ladder


class Snapshot(NamedTuple):
    """The waiting classes and the running jobs at one moment of the store's clock."""

    now_at: int
    classes: tuple[ClassView, ...] = ()
    next_due_at: int | None = None  # When the next delayed job becomes due, or a rate allows the next start.
    running_jobs: RunningJobs | None = None  # The running jobs by rung, if the policy has a ladder.


class Take(NamedTuple):
    """Claim at most ``most`` jobs from the front of a class.

    ``over`` is the lane that this promoted lane goes before. ``until_at`` excludes jobs that began to wait later.
    """

    key: ClassKey
    most: int
    below_reserve: bool
    over: str | None = None
    until_at: int | None = None


class Plan(NamedTuple):
    """An ordered list of takes with two totals. Takes are upper bounds; the store checks every limit itself."""

    takes: tuple[Take, ...] = ()
    free: int = 0
    free_below: int = 0  # How many of the free slots lanes below the reserve may fill.
    leave_free: bool = False  # Every claim counts against ``free_below``, not only those of lanes below the reserve.
    known: int | None = None  # How many classes the plan was made from. A store with more classes claims nothing by it.


class PlanWalk:
    """Counts, take by take, how many jobs a store may still claim by a plan.

    ``slots``: how many the worker has free by its store's count. ``room``: how many more jobs of lanes below the
    reserve the whole pool may run.
    """

    def __init__(self, plan: Plan, *, slots: int, room: int) -> None:
        self._free = min(plan.free, slots)
        self._below = min(plan.free_below, room)
        self._leave_free = plan.leave_free
        self.promoted: dict[str, int] = {}  # Jobs of promoted lanes that were claimed before others, by total.

    def most(self, take: Take) -> int:
        """Return how many jobs of a take may be claimed; none if it is not above 0."""
        return min(take.most, self._free, self._below if take.below_reserve else self._free)

    def claimed(self, take: Take, count: int) -> None:
        """Count jobs that were claimed by a take."""
        self._free -= count
        if take.below_reserve or self._leave_free:
            self._below -= count
        if take.over is not None and count:
            total = f"promoted.{take.key.lane}.{take.over}"
            self.promoted[total] = self.promoted.get(total, 0) + count
