"""Moments as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999  # Years 1 and 9999: what RFC 3339 can write.


def write_moment(at: int) -> str:
    """Write a moment as RFC 3339 in UTC, to the millisecond; one beyond the years 1 to 9999 as the last it can write.

    A job may wait for such a moment, or expire then, and whoever lists jobs must still get a list.
    """
    at = max(FIRST, min(at, LAST))
    text = datetime.fromtimestamp(at // 1_000, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{text}.{at % 1_000:03d}Z"
