"""Sharing by weight with start-time fair queueing: the tags of the sharers, and how many turns each one gets.

Each worker keeps the tags for its own claims. This module reads no clock of the machine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

N = TypeVar("N", bound=Hashable)

AVERAGED_TURNS = 20  # Turns in the moving average of a turn's seconds: enough to smooth, few enough to follow changes.
_KEPT = 1 - 1 / AVERAGED_TURNS  # The part of the average that one more turn leaves.
LEAST_SECONDS = 1e-6  # A turn's least expected seconds, since steps must be positive.


class Sharer(NamedTuple, Generic[N]):
    """One sharer: its tag (the smallest is next), how far a turn moves it, and how many turns it can use."""

    name: N
    tag: float
    step: float
    most: int


class _Account:
    """The account of one sharer: its tag, and the moving average of the seconds of its turns."""

    __slots__ = ("tag", "usual")

    def __init__(self, tag: float, usual: float) -> None:
        self.tag = tag
        self.usual = usual


class Shares(Generic[N]):
    """A virtual clock and a tag for each sharer. ``offset`` in [0, 1) is where in its cycle a new sharer starts."""

    def __init__(self, offset: float = 0.0) -> None:
        self._offset = offset
        self._clock = 0.0
        self._reached = 0.0  # The next value of the clock, once all turns shared out together are recorded.
        self._accounts: dict[N, _Account] = {}  # Of the sharers that had a turn.

    def usual(self, name: N) -> float:
        """Return the expected seconds of a sharer's turn; 1 until it had one."""
        account = self._accounts.get(name)
        return 1.0 if account is None else account.usual

    def tag(self, name: N, step: float) -> float:
        """Return the tag of a sharer. A sharer that was idle comes back at the clock and has saved up no credit."""
        self.catch_up()
        account = self._accounts.get(name)
        # The tag of a new sharer does not move with the clock, or it would never get its first turn.
        return max(self._offset * step if account is None else account.tag, self._clock)

    def catch_up(self) -> None:
        """Move the clock to the end of all turns that are recorded."""
        self._clock = self._reached

    def charge(self, name: N, seconds: float, weight: float = 1.0, turns: int = 1) -> None:
        """Record turns of a sharer of these seconds each. Turns that were shared out together may come in any order."""
        step = seconds / weight
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = _Account(self._offset * step, seconds)
        account.usual = max(LEAST_SECONDS, seconds + (account.usual - seconds) * _KEPT**turns)
        start = account.tag if account.tag > self._clock else self._clock
        last = start + (turns - 1) * step
        if last > self._reached:
            self._reached = last
        account.tag = start + turns * step

    def correct(self, name: N, seconds: float, weight: float = 1.0) -> None:
        """Record that a sharer's last turn took more or fewer seconds than expected."""
        account = self._accounts.get(name)
        if account is not None:
            account.tag += seconds / weight


def share_out(turns: int, sharers: Sequence[Sharer[N]]) -> dict[N, int]:
    """Return how many of the next turns each sharer gets, the smallest tag first, without a loop over turns.

    It finds the tag below which all turns fit, as water fills a vessel with steps, and deals the few turns that are
    left one by one. The part that a sharer cannot use goes to the others.
    """
    given = {sharer.name: 0 for sharer in sharers}
    able = [sharer for sharer in sharers if sharer.most > 0]
    while turns > 0 and able:
        line = _fill_level(turns, able)
        filled = {s.name: max(0, int((line - s.tag) / s.step + 1)) for s in able}
        spent = [s for s in able if filled[s.name] >= s.most]
        if spent:  # These sharers take all turns that they can use, and the rest is shared out again.
            for sharer in spent:
                given[sharer.name] = min(sharer.most, turns)
                turns -= given[sharer.name]
            able = [sharer for sharer in able if sharer not in spent]
            continue
        for sharer in able:
            given[sharer.name] = filled[sharer.name]
            turns -= filled[sharer.name]
        for _ in range(turns):  # At most one turn for each sharer, since each was rounded down.
            able = [sharer for sharer in able if given[sharer.name] < sharer.most]
            if able:
                given[min(able, key=lambda s: s.tag + given[s.name] * s.step).name] += 1
        break
    return given


def _fill_level(turns: int, sharers: Sequence[Sharer[N]]) -> float:
    """Return the highest tag below which at most ``turns`` turns begin. A turn that has begun counts as a whole one."""
    speed = level = 0.0
    line = 0.0
    start_tags = sorted((sharer.tag - sharer.step, sharer.step) for sharer in sharers)
    for index, (start_tag, step) in enumerate(start_tags):
        speed += 1 / step
        level += start_tag / step
        line = (turns + level) / speed
        if index + 1 < len(start_tags) and line <= start_tags[index + 1][0]:
            break
    return line
