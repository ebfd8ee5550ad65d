"""Celery's ``rate_limit`` as a rate of Headway."""

from __future__ import annotations

from typing import Any

from headway.core.errors import ConfigError

_UNITS = {"s": 1, "m": 60, "h": 3_600}


def rate_of(rate_limit: Any) -> str | None:
    """Return a rate such as ``10/60s``, or None for no limit. Raises ``ConfigError`` for what Celery cannot read."""
    if not rate_limit:
        return None
    count, _, unit = str(rate_limit).partition("/")
    try:
        number, period = float(count), _UNITS[unit or "s"]
    except (ValueError, KeyError):
        text = "a number per second, or text such as '10/s', '10/m' or '10/h'"
        raise ConfigError(f"rate_limit must be {text}, got {rate_limit!r}") from None
    if number <= 0:
        return None
    if number == int(number):
        return f"{int(number)}/{period}s"
    return f"1/{period / number:.3f}s"
