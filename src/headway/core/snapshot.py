"""The read-only picture that policies judge, and the plan they answer with."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.job import ClassKey


class ClassView(NamedTuple):
    """One class as a snapshot shows it. ``waiting`` is exact up to a store's bound and a lower bound beyond."""

    key: ClassKey
    waiting: int
    oldest_at: int | None


class Snapshot(NamedTuple):
    """What waits and what runs, at one moment of the store's clock."""

    now_at: int
    classes: tuple[ClassView, ...] = ()
    next_due_at: int | None = None  # When the next delayed job falls due.


class Take(NamedTuple):
    """Claim at most so many jobs from the front of a class."""

    key: ClassKey
    most: int
    below_reserve: bool


class Plan(NamedTuple):
    """An ordered list of takes with two totals. Takes are upper bounds; the store checks every cap itself."""

    takes: tuple[Take, ...] = ()
    free: int = 0
    free_below: int = 0  # How many of them may come from lanes below the reserve.
