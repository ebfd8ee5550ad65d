"""Moments as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime


def write_moment(at: int) -> str:
    """Write a moment as RFC 3339 in UTC, to the millisecond."""
    text = datetime.fromtimestamp(at // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{at % 1_000:03d}Z"
