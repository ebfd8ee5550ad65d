"""Allows one SQLite library per file, because two in one process drop each other's locks and lose commits.

A POSIX lock belongs to the process, and closing any descriptor of a file drops all its locks. A library delays closing
its own descriptors, but cannot know those of another library.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

from headway.core.errors import StoreError

APSW, STDLIB = "apsw", "sqlite3"

# Per process, like the locks.
_lock = threading.Lock()
_held: Counter[tuple[str, str]] = Counter()


def claim(path: Path, library: str) -> None:
    """Record that a library is about to open a file. Raises ``StoreError`` if another one has it open."""
    other = STDLIB if library == APSW else APSW
    real = os.path.realpath(path)
    with _lock:
        if _held[real, other]:
            raise StoreError(
                f"{path} is open through {other} in this process, or may be at any time: through {library} as well, "
                "the two would drop each other's locks and lose commits. Give the store a file of its own; in the "
                "database of a Django project, submit with @io_task and look with IOJob",
                path=str(path),
            )
        _held[real, library] += 1


def release(path: Path, library: str) -> None:
    """Record that a connection was closed."""
    with _lock:
        _held[os.path.realpath(path), library] -= 1
