"""Cron expressions, and the moments at which they tick in a time zone.

An expression has five fields (minute, hour, day, month, weekday), or six with seconds first. `@every 90s` ticks at each
multiple of a number of seconds since 1970, in no time zone. When a zone moves its
clocks, local time skips or repeats itself. These rules define what happens then, and the tests name them:

1. An hour field that begins with `*` makes a cron *flowing*; any other hour field makes it *fixed*.
2. A fixed cron whose local time is skipped ticks once, at the first moment after the gap, however long the gap is.
   Several skipped times of one gap become one tick, together with a time that falls on the end of the gap.
3. A fixed cron whose local time occurs twice ticks at the first occurrence only.
4. A flowing cron ticks at each moment whose local time matches. Both passes of a repeated hour tick, since they are
   different moments, and a skipped hour is not made up for. So `*/5 * * * *` ticks every five minutes of real time.
5. If day and weekday are both restricted, a date that matches either one matches. A field that begins with `*` or `?`
   is not restricted, and a date must then match both fields (which only matters for steps, such as `*/2`).

Rules 2 and 3 are one definition: a fixed cron ticks when the local clock first reads the wanted time or a later one.
"""

# This is not a library because cronsim 2.8, behind the same functions, broke rules 2 to 4 in ten of the tests. It skips
# `*/10 2 * * *` when clocks go forward, repeats a fixed time in the second pass, ticks on a date that Apia skipped, and
# reads the weekday `2-2/1` as every day. A tick takes it 3 to 8 times as long (90 µs instead of 25 for `*/5 * * * *`).
# Its errors name no allowed values, so the reading of fields below would have to stay as well.

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone. Two crons are equal if expression and zone are spelled the same.

    Raises `ValueError` as `parse_cron` does.
    """

    expression: str
    tz: str = "UTC"
    pattern: Pattern = field(init=False, repr=False, compare=False)
    zone: ZoneInfo = field(init=False, repr=False, compare=False)
    every: int | None = field(init=False, repr=False, compare=False)  # Seconds between ticks; None for fields.

    def __post_init__(self) -> None:
        every = _read_interval(self.expression)
        object.__setattr__(self, "every", every)
        object.__setattr__(self, "pattern", _read_expression(self.expression if every is None else "* * * * * *"))
        object.__setattr__(self, "zone", _read_zone(self.tz))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The values that each field of an expression allows, in rising order. Weekdays count from Sunday, which is 0."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool
    flowing: bool


def parse_cron(expression: str, tz: str = "UTC") -> Cron:
    """Return the cron that an expression describes.

    Raises `ValueError` with a message that names the field, what the field allows and the text that it got.
    """
    return Cron(expression, tz)


def next_tick(cron: Cron, after_at: int) -> int | None:
    """Return the first tick strictly after a moment, or None if the cron does not tick within 41 years.

    Every date that exists recurs within that time (a Sunday 29 February may take 40 years), so None means never, as
    for 30 February. Ticks are whole seconds, from year 2 up to and including year 9998.
    """
    after = max(after_at // 1000, _FIRST_SECOND)
    if after > _LAST_SECOND:
        return None
    if cron.every is not None:
        return (after // cron.every + 1) * cron.every * 1000
    tick = _next_flowing(cron, after) if cron.pattern.flowing else _next_fixed(cron, after)
    return None if tick is None else tick * 1000


def ticks_between(cron: Cron, after_at: int, until_at: int, *, limit: int) -> list[int]:
    """Return the last `limit` ticks after `after_at` and up to and including `until_at`, in rising order.

    The cost grows with the limit and hardly with the length of time, so catching up after a year is cheap.
    """
    ticks: list[int] = []
    while len(ticks) < limit:
        room = limit - len(ticks)
        if len(found := _earliest_ticks(cron, after_at, until_at, room + 1)) <= room:
            return found + ticks
        # Too many ticks, so halve the time. Take the later half if it fits, else look for the ticks inside it only.
        middle_at = (after_at + until_at) // 2
        if len(found := _earliest_ticks(cron, middle_at, until_at, room + 1)) <= room:
            ticks = found + ticks
            until_at = middle_at
        else:
            after_at = middle_at
    return ticks


def _earliest_ticks(cron: Cron, after_at: int, until_at: int, count: int) -> list[int]:
    ticks: list[int] = []
    while len(ticks) < count and (tick_at := next_tick(cron, after_at)) is not None and tick_at <= until_at:
        ticks.append(tick_at)
        after_at = tick_at
    return ticks


# Below, a moment is in seconds since 1970 UTC. `local` is the reading of a local clock in seconds, as if it were UTC.

_DAY = 86_400
_INTERVAL_MAX = 366 * _DAY  # Seconds of the longest interval.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_YEARS_SEARCHED = 41  # The rarest date, a Sunday 29 February, recurs within 40 years.
_LAST_YEAR = 9998
_FIRST_SECOND = (date(2, 1, 1).toordinal() - _EPOCH_ORDINAL) * _DAY
_LAST_SECOND = (date(_LAST_YEAR, 12, 31).toordinal() - _EPOCH_ORDINAL) * _DAY

_WINDOW = 2 * _DAY  # Seconds. No zone has ever moved its clocks by more than this, nor there and back within it.


def _next_fixed(cron: Cron, after: int) -> int | None:
    local = _first_match(cron.pattern, _furthest_reading(cron.zone, after) + 1)
    return None if local is None else _first_moment(cron.zone, local)


def _furthest_reading(zone: ZoneInfo, moment: int) -> int:
    """Return the latest local time that the clock has read up to a moment."""
    here = _clock(zone, moment)
    offset = _offset(here)
    if here.fold == 0:
        return moment + offset
    # Rule 3: this is the second pass of a repeated hour, so the clock read a later time before it was moved back.
    offset_before = _offset(here.replace(fold=0))
    change = _find_change(zone, moment - (offset_before - offset), moment)
    return change - 1 + offset_before


def _first_moment(zone: ZoneInfo, local: int) -> int:
    """Return the first moment at which the local clock reads this time or a later one."""
    reading = datetime(1970, 1, 1, tzinfo=zone) + timedelta(seconds=local)
    offset_before = _offset(reading)
    offset_after = _offset(reading.replace(fold=1))
    if offset_before < offset_after:
        # Rule 2: the time is skipped, and its moment is the end of the gap.
        return _find_change(zone, local - offset_after, local - offset_before)
    return local - offset_before


def _next_flowing(cron: Cron, after: int) -> int | None:
    """Return the first moment after `after` whose local time matches, by rule 4."""
    moment = after + 1
    while True:
        offset = _offset(_clock(cron.zone, moment))
        local = _first_match(cron.pattern, moment + offset)
        if local is None:
            return None
        candidate = local - offset
        horizon = min(candidate, moment + _WINDOW)
        if _offset(_clock(cron.zone, horizon)) != offset:
            moment = _find_change(cron.zone, moment, horizon)
        elif horizon == candidate:
            return candidate
        else:
            # However the zone moves its clocks meanwhile, they read no matching time earlier than a window before it.
            moment = max(horizon, candidate - _WINDOW)


def _find_change(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the moment up to `high` at which the offset stops being what it is at `low`."""
    offset = _offset(_clock(zone, low))
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(_clock(zone, middle)) == offset:
            low = middle
        else:
            high = middle
    return high


def _clock(zone: ZoneInfo, moment: int) -> datetime:
    # `fromtimestamp` refuses moments before 1970 on Windows.
    return (_EPOCH + timedelta(seconds=moment)).astimezone(zone)


def _offset(reading: datetime) -> int:
    # Every reading here has a zone, but the type allows one without.
    offset = reading.utcoffset() or timedelta()
    return offset.days * _DAY + offset.seconds


def _first_match(pattern: Pattern, local: int) -> int | None:
    """Return the first matching local time from `local` on, whether or not a clock ever reads it."""
    day, second = divmod(local, _DAY)
    found_day = _first_day(pattern, day)
    if found_day == day:
        found_second = _first_second(pattern, second)
        if found_second is not None:
            return day * _DAY + found_second
        found_day = _first_day(pattern, day + 1)
    if found_day is None:
        return None
    return found_day * _DAY + pattern.hours[0] * 3600 + pattern.minutes[0] * 60 + pattern.seconds[0]


def _first_second(pattern: Pattern, second_of_day: int) -> int | None:
    hour, rest = divmod(second_of_day, 3600)
    minute, second = divmod(rest, 60)
    if hour in pattern.hours:
        if minute in pattern.minutes and (found := _at_least(pattern.seconds, second)) is not None:
            return hour * 3600 + minute * 60 + found
        if (found := _at_least(pattern.minutes, minute + 1)) is not None:
            return hour * 3600 + found * 60 + pattern.seconds[0]
    if (found := _at_least(pattern.hours, hour + 1)) is not None:
        return found * 3600 + pattern.minutes[0] * 60 + pattern.seconds[0]
    return None


def _at_least(values: tuple[int, ...], floor: int) -> int | None:
    position = bisect_left(values, floor)
    return values[position] if position < len(values) else None


def _first_day(pattern: Pattern, day: int) -> int | None:
    """Return the first matching date from `day` on, both as days since 1970."""
    start = date.fromordinal(day + _EPOCH_ORDINAL)
    for year in range(start.year, min(start.year + _YEARS_SEARCHED, _LAST_YEAR) + 1):
        for month in pattern.months:
            if (year, month) < (start.year, start.month):
                continue
            earliest = start.day if (year, month) == (start.year, start.month) else 1
            found = _first_day_of_month(pattern, year, month, earliest)
            if found is not None:
                return date(year, month, found).toordinal() - _EPOCH_ORDINAL
    return None


def _first_day_of_month(pattern: Pattern, year: int, month: int, earliest: int) -> int | None:
    monday_based, length = monthrange(year, month)
    for day in range(earliest, length + 1):
        day_matches = day in pattern.days
        weekday_matches = (monday_based + day) % 7 in pattern.weekdays
        # Rule 5.
        if (day_matches or weekday_matches) if pattern.either_day else (day_matches and weekday_matches):
            return day
    return None


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of an expression: its bounds, and the names of its values in order from the first."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    greatest: int | None = None
    question_mark: bool = False


_SECOND = _Field("second", 0, 59)
_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY_OF_MONTH = _Field("day", 1, 31, question_mark=True)
_MONTH = _Field("month", 1, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"))
_WEEKDAY = _Field("weekday", 0, 6, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"), greatest=7, question_mark=True)

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def _read_expression(expression: str) -> Pattern:
    texts = expression.split()
    if len(texts) == 1 and texts[0].startswith("@"):
        if texts[0].lower() not in _ALIASES:
            raise ValueError(f"cron {expression!r}: alias must be one of {', '.join(_ALIASES)}, got {texts[0]!r}")
        texts = _ALIASES[texts[0].lower()].split()
    if len(texts) not in (5, 6):
        wanted = "5 fields (minute hour day month weekday), or 6 with seconds first"
        raise ValueError(f"cron {expression!r}: expected {wanted}, got {len(texts)}")
    second, minute, hour, day, month, weekday = texts if len(texts) == 6 else ["0", *texts]
    try:
        return Pattern(
            seconds=_read_field(_SECOND, second),
            minutes=_read_field(_MINUTE, minute),
            hours=_read_field(_HOUR, hour),
            days=_read_field(_DAY_OF_MONTH, day),
            months=_read_field(_MONTH, month),
            weekdays=_read_field(_WEEKDAY, weekday),
            either_day=day[0] not in "*?" and weekday[0] not in "*?",
            flowing=hour[0] == "*",
        )
    except ValueError as error:
        raise ValueError(f"cron {expression!r}: {error}") from None


def _read_field(spec: _Field, text: str) -> tuple[int, ...]:
    values: set[int] = set()
    for item in text.split(","):
        if not item:
            raise ValueError(f"{spec.name} must have a value on each side of a comma, got {text!r}")
        values.update(_read_item(spec, item))
    # Sunday may be written as 7, so that a range can end with it.
    return tuple(sorted({spec.first if value > spec.last else value for value in values}))


def _read_item(spec: _Field, item: str) -> list[int]:
    span, slash, step_text = item.partition("/")
    step = _read_step(spec, step_text, item) if slash else 1
    if span == "*" or (span == "?" and spec.question_mark):
        return list(range(spec.first, spec.last + 1, step))
    low_text, dash, high_text = span.partition("-")
    low = _read_value(spec, low_text, item)
    if not dash:
        return list(range(low, max(low, spec.last) + 1, step)) if slash else [low]
    high = _read_value(spec, high_text, item)
    if low > high:
        better = _rising(spec, low_text, high_text, step)
        raise ValueError(f"{spec.name} range must rise, got {item!r}; write {better!r}")
    return list(range(low, high + 1, step))


def _read_step(spec: _Field, text: str, item: str) -> int:
    # A longer step would match only once, though it looks as if it reached into the next hour or day.
    longest = spec.last - spec.first + 1
    step = _read_digits(text)
    if step is None or not 1 <= step <= longest:
        raise ValueError(f"{spec.name} step must be 1 to {longest}, got {text!r} in {item!r}")
    return step


def _read_value(spec: _Field, text: str, item: str) -> int:
    if text.upper() in spec.names:
        return spec.first + spec.names.index(text.upper())
    greatest = spec.last if spec.greatest is None else spec.greatest
    value = _read_digits(text)
    if value is None or not spec.first <= value <= greatest:
        names = f" or {spec.names[0]} to {spec.names[-1]}" if spec.names else ""
        place = "" if text == item else f" in {item!r}"
        raise ValueError(f"{spec.name} must be {spec.first} to {greatest}{names}, got {text!r}{place}")
    return value


def _read_digits(text: str) -> int | None:
    # `int` alone accepts signs, underscores and the digits of every script, and raises for thousands of digits.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _rising(spec: _Field, low_text: str, high_text: str, step: int) -> str:
    """Return the correct spelling of a range that wraps round the end of its field, such as `FRI-MON`."""
    low, high = _read_value(spec, low_text, low_text), _read_value(spec, high_text, high_text)
    if step > 1:
        round_the_end = [*range(low, spec.last + 1), *range(spec.first, high + 1)]
        return ",".join(str(value) for value in round_the_end[::step])
    named = spec.names and not (low_text + high_text).isdigit()
    first_text, last_text = (spec.names[0], spec.names[-1]) if named else (str(spec.first), str(spec.last))
    head = low_text if low == spec.last else f"{low_text}-{last_text}"
    tail = high_text if high == spec.first else f"{first_text}-{high_text}"
    return tail if low > spec.last else f"{head},{tail}"


def _read_interval(expression: str) -> int | None:
    """Return the seconds of `@every 90s`, or None for another expression."""
    word, _, length = expression.strip().partition(" ")
    if word != "@every":
        return None
    number = length.strip().removesuffix("s")
    if not (number.isascii() and number.isdigit() and 0 < int(number[:12]) <= _INTERVAL_MAX and len(number) <= 12):
        raise ValueError(f"@every must have 1s to {_INTERVAL_MAX}s, got {length.strip()!r}")
    return int(number)


def _read_zone(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        # Folders, absolute paths and unreadable names each raise a different error.
        raise ValueError(f"time zone must be a name from the IANA database, got {tz!r}{_near_zones(tz)}") from None


def _near_zones(tz: str) -> str:
    spellings = _zone_spellings()
    if not spellings:
        return "; this machine has no time zone database: install the package tzdata"
    wanted = tz.lower().replace(" ", "_")
    near = dict.fromkeys(spellings[spelling] for spelling in get_close_matches(wanted, spellings, n=5))
    return f"; did you mean {' or '.join(list(near)[:3])}?" if near else ""


@cache
def _zone_spellings() -> dict[str, str]:
    """Return every zone by name and by city, in lower case. Reading the database takes about 30 ms."""
    known = sorted(available_timezones())
    return {name.rpartition("/")[2].lower(): name for name in known} | {name.lower(): name for name in known}
