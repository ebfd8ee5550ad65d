"""Logs outages of a store: one line when it stops answering, and one when it answers again."""

from __future__ import annotations

import logging
import time

from headway.core.log_event import LogEvent

UNAVAILABLE, RECOVERED = "store.unavailable", "store.recovered"


class Outage:
    """Tracks outages of the store in one process. Each part reports failed calls and the next success.

    The outage is over when every part that had failed has succeeded.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._began = 0.0
        self.failing: set[str] = set()  # Callers check this set first, which saves a call of ``succeeded``.

    def failed(self, part: str, problem: BaseException | str, *, retry_in: float | None = None) -> None:
        """Record that a part of this process could not reach the store."""
        error = str(problem) or type(problem).__name__
        if not self.failing:
            self._began = time.monotonic()
        level = logging.DEBUG if self.failing else logging.WARNING
        self.failing.add(part)
        wait = None if retry_in is None else round(retry_in, 3)
        self._log.log(level, LogEvent(UNAVAILABLE, during=part, retry_in=wait, error=error))

    def succeeded(self, part: str) -> None:
        """Record that a part has reached the store."""
        if part in self.failing:
            self.failing.remove(part)
            if not self.failing:
                self._log.warning(LogEvent(RECOVERED, after=round(time.monotonic() - self._began, 1)))
