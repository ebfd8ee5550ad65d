"""Room kept beside a store's file: on a full disk SQLite could not even record results without it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BALLAST_BYTES = 2 << 20


def ballast_of(path: Path) -> Path:
    """Name the file that keeps the room."""
    return path.with_name(path.name + "-ballast")


def lay_ballast(path: Path) -> None:
    """Keep some room, if there is any."""
    with contextlib.suppress(OSError):
        descriptor = os.open(ballast_of(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
        except OSError:
            drop_ballast(path)
        finally:
            os.close(descriptor)


def drop_ballast(path: Path) -> bool:
    """Give the room up. False: there was none."""
    try:
        ballast_of(path).unlink()
    except OSError:
        return False
    return True
