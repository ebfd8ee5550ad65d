"""Store time: the clock of a server or host, with steps back taken out.

A store keeps two numbers: how far store time is ahead of the clock, and the latest moment of store time that was read.
They change at most once a second. The same rule is written in Lua (``common.lua``) and in SQL (``now_ms.sql``), and a
test compares all three.
"""

from __future__ import annotations

from typing import NamedTuple

STEP_MS = 1_000  # Store time stands still for a step back of up to this. The stored moment may be as old as this.
GAP_MS = 60_000  # Live workers call more often than this, so a longer gap is a step forward, or no worker ran.
SLEW = 20  # While store time is ahead of the clock it runs slower by one part in this many.


class StoreClock(NamedTuple):
    """The two numbers that a store keeps about its clock."""

    ahead_ms: int = 0
    reached_at: int = 0


def step_clock(clock: StoreClock, raw_at: int) -> tuple[int, StoreClock]:
    """Return the store time at a reading of the raw clock, and the numbers to store.

    - After a step back of over a second, store time goes on from where it was, ahead of the clock.
    - Store time follows a step forward. If store time was ahead, the step reduces that first.
    - While store time is ahead it runs 5 % slower, until both agree again.
    """
    now_at = raw_at + clock.ahead_ms
    passed_ms = now_at - clock.reached_at
    if 0 <= passed_ms <= STEP_MS:
        return now_at, clock
    if passed_ms < -STEP_MS:
        now_at = clock.reached_at + STEP_MS
        return now_at, StoreClock(now_at - raw_at, now_at)
    if passed_ms < 0:
        return clock.reached_at, clock
    back_ms = min(clock.ahead_ms, passed_ms - STEP_MS if passed_ms > GAP_MS else passed_ms // SLEW)
    return now_at - back_ms, StoreClock(clock.ahead_ms - back_ms, now_at - back_ms)
