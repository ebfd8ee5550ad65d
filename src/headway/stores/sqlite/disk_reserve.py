"""Reserves disk space beside a store's file, so that SQLite can record results on a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

RESERVE_BYTES = 2 << 20
ROOM_BYTES = 2 * RESERVE_BYTES  # Free bytes needed to write the reserve again; running jobs need the rest.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def reserve_path(path: Path) -> Path:
    """Return the path of the reserve file."""
    return path.with_name(path.name + "-ballast")


def write_reserve(path: Path) -> bool:
    """Write the reserve. Return False if the disk is full, and True on success or any other error."""
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

    Without the reserve, the remaining space belongs to running jobs.
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
