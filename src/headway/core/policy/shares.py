"""Sharing by weight: the clocks of the sharers, and how many turns each gets. Start-time fair queueing.

Each worker keeps the clocks for its own claims. No clock of the machine is read here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

N = TypeVar("N", bound=Hashable)

REMEMBERED = 20  # Turns over which what is usual is averaged.
LEAST_SECONDS = 1e-6


class Sharer(NamedTuple, Generic[N]):
    """One that shares: its tag (the smallest is next), how far a turn moves it, and how many turns it can use."""

    name: N
    tag: float
    step: float
    most: int


class Shares(Generic[N]):
    """A clock and a tag for each sharer. ``offset`` in [0, 1) is where in its cycle a new one begins."""

    def __init__(self, offset: float = 0.0) -> None:
        self._offset = offset
        self._clock = 0.0
        self._reached = 0.0  # Where the clock goes once all turns that were shared out together are noted.
        self._tags: dict[N, float] = {}
        self._usual: dict[N, float] = {}  # By sharer: the seconds of its last turns, newer ones counting more.

    def usual(self, name: N) -> float:
        """Return the seconds that a turn of a sharer is likely to take; 1 until it had one."""
        return self._usual.get(name, 1.0)

    def tag(self, name: N, step: float) -> float:
        """Return where a sharer stands. One that was away comes back at the clock: it has stored nothing up."""
        self._clock = self._reached
        return self._start(name, step)

    def charge(self, name: N, seconds: float, weight: float = 1.0) -> None:
        """Note that a sharer had a turn. Turns that were shared out together are noted in any order."""
        step = seconds / weight
        usual = self._usual.get(name, seconds)
        self._usual[name] = max(LEAST_SECONDS, usual + (seconds - usual) / REMEMBERED)
        start = self._start(name, step)
        self._reached = max(self._reached, start)
        self._tags[name] = start + step

    def correct(self, name: N, seconds: float, weight: float = 1.0) -> None:
        """Note that its last turn was worth more or less than thought."""
        if name in self._tags:
            self._tags[name] += seconds / weight

    def _start(self, name: N, step: float) -> float:
        # A new one does not move away with the clock, or it would never have its first turn.
        return max(self._tags.get(name, self._offset * step), self._clock)


def share_out(turns: int, sharers: Sequence[Sharer[N]]) -> dict[N, int]:
    """Return how many of the next turns each sharer gets, the smallest tag first. No loop over turns.

    All turns that begin below one water line are given, as in a vessel with steps, and the few that are left then
    one by one; a sharer that cannot use its part leaves it.
    """
    given = {sharer.name: 0 for sharer in sharers}
    able = [sharer for sharer in sharers if sharer.most > 0]
    while turns > 0 and able:
        line = _water_line(turns, able)
        filled = {s.name: max(0, int((line - s.tag) / s.step + 1)) for s in able}
        spent = [s for s in able if filled[s.name] >= s.most]
        if spent:  # They take all they can use; the rest is shared out anew.
            for sharer in spent:
                given[sharer.name] = min(sharer.most, turns)
                turns -= given[sharer.name]
            able = [sharer for sharer in able if sharer not in spent]
            continue
        for sharer in able:
            given[sharer.name] = filled[sharer.name]
            turns -= filled[sharer.name]
        for _ in range(turns):  # No more than there are sharers: each was rounded down by at most a turn.
            able = [sharer for sharer in able if given[sharer.name] < sharer.most]
            if able:
                given[min(able, key=lambda s: s.tag + given[s.name] * s.step).name] += 1
        break
    return given


def _water_line(turns: int, sharers: Sequence[Sharer[N]]) -> float:
    """Return the height below which no more than this many turns begin: each begun counts as a whole one."""
    speed = level = 0.0
    line = 0.0
    floors = sorted((sharer.tag - sharer.step, sharer.step) for sharer in sharers)
    for index, (floor, step) in enumerate(floors):
        speed += 1 / step
        level += floor / step
        line = (turns + level) / speed
        if index + 1 < len(floors) and line <= floors[index + 1][0]:
            break
    return line
