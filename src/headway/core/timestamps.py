"""Timestamps as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999  # Milliseconds: years 1 to 9999, the range of RFC 3339.


def write_moment(at: int) -> str:
    """Return a moment as RFC 3339 in UTC, to the millisecond, clamped to the years 1 to 9999.

    A job may be due or expire beyond these years, and a list that contains it must still be readable.
    """
    at = max(FIRST, min(at, LAST))
    text = datetime.fromtimestamp(at // 1_000, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{text}.{at % 1_000:03d}Z"
