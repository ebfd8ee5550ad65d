"""Lengths of time and rates as people write them: ``90``, ``"5m"``, ``"100/min"``, ``"20/10s"``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

from headway.core.policy.document import DAY, HOUR, SECOND

MINUTE = 60 * SECOND
LENGTH_MS_MAX = 100 * 365 * DAY
COUNT_MAX = 1_000_000_000
_LARGE = 10**18

_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), SECOND),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), MINUTE),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), HOUR),
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * DAY),
}
_WRITTEN = (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1))  # The largest unit that fits is written.
_PERIODS = {SECOND: "s", MINUTE: "min", HOUR: "h", DAY: "day"}

_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_LENGTH = re.compile(rf"{_NUMBER}\s*([a-z]+)")
_RATE = re.compile(rf"([0-9]{{1,18}})\s*(?:/|\bper\b|\ba\b)\s*(?:{_NUMBER}\s*)?([a-z]+)")


def parse_length(value: object) -> int:
    """Return a length of time in milliseconds, from a number of seconds or text such as ``"90s"`` or ``"24h"``.

    Raises ``ValueError`` that says what was expected and what was found.
    """
    length_ms: float | None = None
    if isinstance(value, str):
        match = _LENGTH.fullmatch(value.strip().lower())
        if match and match[2] in _UNITS:
            length_ms = float(match[1]) * _UNITS[match[2]]
    elif is_number(value):
        length_ms = value * SECOND
    if length_ms is None:
        raise ValueError(f"expected seconds, or a length such as '90s', '5m', '24h' or '7d', found {found(value)}")
    if not 0 <= length_ms <= LENGTH_MS_MAX:
        raise ValueError(f"expected a length from 0 to {LENGTH_MS_MAX // DAY} days, found {found(value)}")
    return round(length_ms)


def parse_rate(value: object) -> tuple[int, int]:
    """Return count and milliseconds of a rate such as ``"100/min"``, ``"20/10s"`` or ``"5 per day"``.

    Raises ``ValueError`` that says what was expected and what was found.
    """
    match = _RATE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[3] not in _UNITS:
        raise ValueError(f"expected a rate such as '100/min', '10/s' or '20/10s', found {found(value)}")
    count, period_ms = int(match[1]), round(float(match[2] or 1) * _UNITS[match[3]])
    if not 1 <= count <= COUNT_MAX:
        raise ValueError(f"expected a rate of 1 to {COUNT_MAX} at a time, found {found(value)}")
    if not 1 <= period_ms <= LENGTH_MS_MAX:
        raise ValueError(f"expected a rate over 1 ms to {LENGTH_MS_MAX // DAY} days, found {found(value)}")
    return count, period_ms


def write_length(length_ms: int) -> str:
    """Return a length in the largest unit that divides it: ``7d``, ``90s``."""
    unit, size = next(pair for pair in _WRITTEN if length_ms % pair[1] == 0 and (length_ms or pair[1] == SECOND))
    return f"{length_ms // size}{unit}"


def write_seconds(length_ms: int) -> float:
    return length_ms / SECOND if length_ms % SECOND else length_ms // SECOND


def write_rate(count: int, period_ms: int) -> str:
    """Return a rate as text that ``parse_rate`` reads."""
    return f"{count}/{_PERIODS.get(period_ms) or write_length(period_ms)}"


def plural(count: int, word: str) -> str:
    """Count things: ``1 job``, ``2 jobs``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of reasonable size. Booleans are not numbers."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGE < value < _LARGE


def found(value: object) -> str:
    """Return a short description of a wrong value, for errors."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 60 else f"{value[:59]}…")
        case int() | float():
            return str(value) if is_number(value) or isinstance(value, float) else "a very large number"
        case Mapping():
            return "a table"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
