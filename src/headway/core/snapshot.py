"""The read-only picture that policies judge, and the plan they answer with."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.job import ClassKey
from headway.core.policy.ladder import RunningJobs


class ClassView(NamedTuple):
    """One class as a snapshot shows it.

    ``waiting`` is how many jobs nothing of their own holds back, exact up to a store's bound and a lower bound beyond
    (jobs that waited for a limit which now has room count once for each such limit).
    ``oldest_at`` is since when the longest-waiting of them has waited, ``head_key`` the first one's order key;
    ``blocked`` says why none can start now whatever a worker does.
    """

    key: ClassKey
    waiting: int
    oldest_at: int | None
    head_key: int = 0
    fair: bool = False
    blocked: str | None = None  # paused | ladder


class Snapshot(NamedTuple):
    """What waits and what runs, at one moment of the store's clock."""

    now_at: int
    classes: tuple[ClassView, ...] = ()
    next_due_at: int | None = None  # When the next delayed job falls due, or a rate lets the next one start.
    floor: RunningJobs | None = None  # What runs on the ladder, if the policy has one.


class Take(NamedTuple):
    """Claim at most so many jobs from the front of a class.

    ``over`` is the lane whose turn it would be, had this one not been promoted; ``until_at`` leaves alone
    what began to wait later.
    """

    key: ClassKey
    most: int
    below_reserve: bool
    over: str | None = None
    until_at: int | None = None


class Plan(NamedTuple):
    """An ordered list of takes with two totals. Takes are upper bounds; the store checks every cap itself."""

    takes: tuple[Take, ...] = ()
    free: int = 0
    free_below: int = 0  # How many of them may come from lanes below the reserve.
    leave_free: bool = False  # Whatever is claimed comes off that, not only what those lanes take.
    known: int | None = None  # How many classes it was made from. If there are more by now, nothing is claimed by it.
