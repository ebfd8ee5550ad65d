"""Where classes begin: so that a snapshot of what waits need not walk over all the rows that are gone."""

from __future__ import annotations

import time
from collections.abc import Mapping

SLOW = 0.005  # Seconds; what takes less is done each time.
SHARE = 20  # Full scans take at most one part in this many of the time.


class ScanHints:
    """The first place in each class at which a job may wait, as this process last saw it.

    Rows of jobs that were claimed stay in the index until the server may clean up, which one old transaction prevents.
    A look from the very beginning finds also what was committed late, but walks over all of them; where that has become
    slow, it is made now and then, and the others begin at the heads.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._last = 0.0
        self._cost = 0.0

    def known(self) -> tuple[list[int], list[int], list[int]]:
        """Return classes, where they begin, and after which rewind; none if the next look is a whole one."""
        if self._cost < SLOW or time.monotonic() - self._last >= SHARE * self._cost:
            return [], [], []
        places = self._known.values()
        return list(self._known), [place for place, _ in places], [rewound for _, rewound in places]

    def note(self, found: Mapping[int, tuple[int, int]], lasted: float | None) -> None:
        """Remember what a look found; ``lasted``: how many seconds it took, if it was a whole one."""
        self._known.update(found)
        if lasted is not None:
            self._last, self._cost = time.monotonic(), lasted
