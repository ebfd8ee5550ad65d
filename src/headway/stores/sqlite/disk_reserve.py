"""Room kept beside a store's file: on a full disk SQLite could not even record results without it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

BALLAST_BYTES = 2 << 20
ROOM_BYTES = 2 * BALLAST_BYTES  # Free bytes from which the room is kept again: what runs may need some meanwhile.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def ballast_of(path: Path) -> Path:
    """Name the file that keeps the room."""
    return path.with_name(path.name + "-ballast")


def lay_ballast(path: Path) -> bool:
    """Keep some room. Return False if there is none; where it cannot be kept for another reason, that is no matter."""
    try:
        descriptor = os.open(ballast_of(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as problem:
        return problem.errno not in _FULL
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
    except OSError as problem:
        drop_ballast(path)
        return problem.errno not in _FULL
    finally:
        os.close(descriptor)
    return True


def has_room(path: Path) -> bool:
    """Return whether new jobs may use the disk: the ballast is there, or could be laid again.

    While it is given up, the room that is left belongs to what runs.
    """
    if ballast_of(path).exists():
        return True
    with contextlib.suppress(OSError, AttributeError):
        disk = os.statvfs(path.absolute().parent)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            return False
    return lay_ballast(path)


def drop_ballast(path: Path) -> bool:
    """Remove the ballast. False: there was none."""
    try:
        ballast_of(path).unlink()
    except OSError:
        return False
    return True
