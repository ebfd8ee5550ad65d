"""The keys of a policy file: which field of the document each one sets, and how its value is read and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from headway.core.policy.retry import BACKOFFS, DELAY_MS_MAX
from headway.core.policy.units import (
    COUNT_MAX,
    LENGTH_MS_MAX,
    found,
    is_number,
    parse_length,
    write_length,
    write_seconds,
)
from headway.core.suggest import did_you_mean

LEVEL_MAX = 1_000
RETRIES_MAX = 1_000_000
# Far enough apart for any use, and close enough for order keys, which are whole microseconds.
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000_000
GROWTH_MAX = 1_000

# A reader returns a checked value, or raises ``ValueError`` that says what it expected and what it found.


def whole(value: Any, least: int = 0, most: int = COUNT_MAX) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    bounds = f"from {least} to {most}" if most < COUNT_MAX else f"of at least {least}"
    raise ValueError(f"expected a whole number {bounds}, found {found(value)}")


def number(value: Any, least: float, most: float) -> float:
    if is_number(value) and least <= value <= most:
        return value
    raise ValueError(f"expected a number from {least:g} to {most:,.0f}, found {found(value)}")


def length(value: Any, least_ms: int = 0, most_ms: int = LENGTH_MS_MAX, note: str = "") -> int:
    """Read a length of time. ``note`` explains the bounds in errors."""
    length_ms = parse_length(value)
    if least_ms <= length_ms <= most_ms:
        return length_ms
    least, most = write_length(least_ms), write_length(most_ms)
    bounds = f"from {least} to {most}" if most_ms < LENGTH_MS_MAX else f"of at least {least}"
    raise ValueError(f"expected a length {bounds}{note}, found {found(value)}")


def word(value: Any, known: Sequence[str], what: str = "") -> str:
    """Read one of some known words. ``what`` describes them in errors, if that is not obvious."""
    if isinstance(value, str) and value in known:
        return value
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    choices = " or ".join(filter(None, [", ".join(known[:-1]), *known[-1:]]))
    raise ValueError(f"expected {what}{choices or 'nothing, as there is none'}, found {found(value)}{hint}")


def parameter(value: Any) -> str:
    """Return the name of a parameter. Raises ``ValueError`` for another value."""
    if isinstance(value, str) and value.isidentifier():
        return value
    raise ValueError(f"expected the name of a parameter, found {found(value)}")


def plain(number: float) -> float:
    """Return a whole number as an int, so that 6 and 6.0 are the same policy."""
    return int(number) if number == int(number) else number


class Key(NamedTuple):
    """A key of a table, and the field that it sets."""

    name: str
    field: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value


_DELAY, TIMEOUT = partial(length, most_ms=DELAY_MS_MAX), partial(length, least_ms=1, most_ms=DELAY_MS_MAX)
_RETRIES = partial(whole, most=RETRIES_MAX)
_GROWTH = partial(number, least=1, most=GROWTH_MAX)
WEIGHT = partial(number, least=WEIGHT_MIN, most=WEIGHT_MAX)
_ENDED = ("completed", "failed", "cancelled", "dead_letter")

POLICY = (Key("max_depth", "max_depth", whole), Key("crash_limit", "crash_limit", partial(whole, least=1)))
LANE = (
    Key("level", "level", partial(whole, most=LEVEL_MAX)),
    Key("weight", "weight", WEIGHT, plain),
    Key("max_retries", "max_retries", _RETRIES),
    Key("timeout", "timeout_ms", TIMEOUT, write_seconds),
)
RESERVE = (
    Key("scope", "scope", partial(word, known=("worker", "pool"))),
    Key("rule", "rule", partial(word, known=("cap", "leave_free"))),
)
RETRY = (
    Key("backoff", "backoff", partial(word, known=BACKOFFS)),
    Key("base", "base_ms", _DELAY, write_seconds),
    Key("cap", "cap_ms", _DELAY, write_seconds),
    Key("jitter", "jitter", partial(number, least=0, most=1), plain),
)
# These two stand in the table of retries, and are fields of the policy.
GROWTH = (
    Key("timeout_growth", "timeout_growth", _GROWTH, plain),
    Key("timeout_growth_cap", "timeout_growth_cap", _GROWTH, plain),
)
LADDER = (
    Key("victim", "victim", partial(word, known=("least_elapsed", "random"))),
    Key("lower", "lower", partial(word, known=("needed", "all"))),
)
KEEP = (
    *(Key(name, f"{name}_ms", length, write_length) for name in (*_ENDED, "idempotency")),
    *(Key(f"{name}_max", f"{name}_max", whole) for name in _ENDED),
)


def task_keys(lanes: Sequence[str] = (), durations: Sequence[str] = ()) -> tuple[Key, ...]:
    """Return the keys of a task's table, which may name these lanes and durations."""
    return (
        Key("priority", "priority", partial(word, known=lanes, what="a lane: ")),
        Key("duration", "duration", partial(word, known=durations, what="a rung of the ladder: ")),
        Key("timeout", "timeout_ms", TIMEOUT, write_seconds),
        Key("max_retries", "max_retries", _RETRIES),
        Key("fair_by", "fair_by", parameter),
    )
