"""A progress bar on the terminal of a person who waits for a command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WIDTH = 30  # Characters of the bar.


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Return what draws how many of all units are done, or None if no person watches. Remove the bar at the end."""
    if not sys.stderr.isatty():
        yield None
        return

    def draw(done: int, whole: int) -> None:
        full = min(WIDTH, WIDTH * done // max(1, whole))
        bar = f"\r{'━' * full}{'╌' * (WIDTH - full)} {done:,} of {whole:,} {unit}"
        print(bar, end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
