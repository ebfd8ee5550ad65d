"""Store time in one process."""

from __future__ import annotations

from headway.core.policy.clock import STEP_MS, StoreClock, step_clock


class SteadyClock:
    """Store time in one process: applies ``step_clock`` to a raw clock, and never goes back.

    A store that several processes share passes the stored numbers to ``learn``, and stores ``clock``.
    """

    def __init__(self) -> None:
        self.clock = StoreClock()
        self.stored = StoreClock()  # As it was last read or written.
        self._raw_at = -1
        self._last_at = 0

    def is_fresh(self, raw_at: int) -> bool:
        """Return whether the stored numbers were read within a second, without a step back of the raw clock since."""
        return 0 <= raw_at - self._raw_at < STEP_MS and self._raw_at >= 0

    def learn(self, stored: StoreClock, raw_at: int) -> None:
        """Adopt the numbers that other processes have stored, unless this process knows of a later moment."""
        if stored.reached_at >= self.clock.reached_at:
            self.clock = stored
        self.stored = stored
        self._raw_at = raw_at

    def now(self, raw_at: int) -> int:
        """Return the store time at a reading of the raw clock."""
        now_at, self.clock = step_clock(self.clock, raw_at)
        self._last_at = max(self._last_at, now_at)
        return self._last_at
