"""Moments: the earlier of two, and timestamps as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import overload

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999  # Milliseconds: years 1 to 9999, the range of RFC 3339.
_EPOCH, _MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier of two moments, of which one or both may be missing."""
    return min((at for at in (one, other) if at is not None), default=None)


@overload
def write_moment(at: int) -> str: ...
@overload
def write_moment(at: int | None) -> str | None: ...
def write_moment(at: int | None) -> str | None:
    """Return a moment as RFC 3339 in UTC, to the millisecond, clamped to the years 1 to 9999. None stays None.

    A job may be due or expire beyond these years, and a list that contains it must still be readable.
    """
    if at is None:
        return None
    at = max(FIRST, min(at, LAST))
    text = datetime.fromtimestamp(at // 1_000, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{text}.{at % 1_000:03d}Z"


def read_moment(text: str) -> int:
    """Read a moment as ``write_moment`` writes it. Raises ``ValueError``."""
    return (datetime.fromisoformat(text) - _EPOCH) // _MS
