"""Where the scan of each class starts, so that a snapshot does not read dead rows."""

from __future__ import annotations

import time
from collections.abc import Mapping

SLOW = 0.005  # Seconds; what takes less is done each time.
SHARE = 20  # Full scans take at most one part in this many of the time.


class ScanHints:
    """The first order key of each class at which a job may wait, as this process last read it.

    Rows of jobs that were claimed stay in the index until the server may clean up, which one old transaction prevents.
    A full scan also finds jobs that were committed late, but reads all of these rows. Once it is slow, the process
    does a full scan only now and then, and starts the other scans at the hints.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._last = 0.0
        self._cost = 0.0

    def known(self) -> tuple[list[int], list[int], list[int]]:
        """Return the classes, their starts and rewinds, or empty lists if the next scan is a full one."""
        if self._cost < SLOW or time.monotonic() - self._last >= SHARE * self._cost:
            return [], [], []
        places = self._known.values()
        return list(self._known), [place for place, _ in places], [rewound for _, rewound in places]

    def note(self, found: Mapping[int, tuple[int, int]], lasted: float | None) -> None:
        """Record the result of a scan. ``lasted``: the seconds that a full scan took."""
        self._known.update(found)
        if lasted is not None:
            self._last, self._cost = time.monotonic(), lasted
