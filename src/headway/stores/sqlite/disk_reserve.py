"""Room kept beside a store's file: on a full disk SQLite could not even record results without it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

RESERVE_BYTES = 2 << 20
ROOM_BYTES = 2 * RESERVE_BYTES  # Free bytes from which the room is kept again: what runs may need some meanwhile.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def reserve_path(path: Path) -> Path:
    """Name the file that keeps the room."""
    return path.with_name(path.name + "-ballast")


def write_reserve(path: Path) -> bool:
    """Keep some room. Return False if there is none; where it cannot be kept for another reason, that is no matter."""
    try:
        descriptor = os.open(reserve_path(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as problem:
        return problem.errno not in _FULL
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    except OSError as problem:
        delete_reserve(path)
        return problem.errno not in _FULL
    finally:
        os.close(descriptor)
    return True


def has_room(path: Path) -> bool:
    """Return whether new jobs may use the disk: the reserve is there, or could be written again.

    While it is given up, the room that is left belongs to what runs.
    """
    if reserve_path(path).exists():
        return True
    with contextlib.suppress(OSError, AttributeError):
        disk = os.statvfs(path.absolute().parent)
        if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
            return False
    return write_reserve(path)


def delete_reserve(path: Path) -> bool:
    """Delete the reserve. Return False if there was none."""
    try:
        reserve_path(path).unlink()
    except OSError:
        return False
    return True
