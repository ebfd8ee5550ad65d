"""Cron expressions: their syntax and their ticks, by the rules at the top of `headway/core/cron.py`."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cron import Cron, next_tick, parse_cron, ticks_between


def moment(text: str, tz: str = "UTC", *, fold: int = 0) -> int:
    """Return the milliseconds of a local time; `fold=1` is the second pass of a time that occurs twice."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz), fold=fold)
    return int(local.timestamp()) * 1000


def reading(tick_at: int, tz: str) -> datetime:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=tick_at)).astimezone(ZoneInfo(tz))


def utc_ticks(expression: str, tz: str, after: str, until: str) -> list[str]:
    """Return the ticks between two UTC times, each as `day hour:minute` in UTC."""
    found = ticks_between(parse_cron(expression, tz), moment(after), moment(until), limit=1000)
    return [reading(tick_at, "UTC").strftime("%d %H:%M") for tick_at in found]


SYNTAX = [
    ("a star matches each minute", "* * * * *", "2024-01-01T00:00:00", "2024-01-01T00:01:00"),
    ("a value matches itself", "30 9 * * *", "2024-01-01T00:00:00", "2024-01-01T09:30:00"),
    ("leading zeros are harmless", "05 09 * * *", "2024-01-01T00:00:00", "2024-01-01T09:05:00"),
    ("a list matches each item", "10,20 * * * *", "2024-01-01T00:10:00", "2024-01-01T00:20:00"),
    ("a list may mix items and spaces may be many", "1,10-12,*/30  *  * * * ", "2024-01-01T00:12", "2024-01-01T00:30"),
    ("a range includes its end", "0 9-17 * * *", "2024-01-01T16:00:00", "2024-01-01T17:00:00"),
    ("a range starts again on the next day", "0 9-17 * * *", "2024-01-01T17:00:00", "2024-01-02T09:00:00"),
    ("a stepped star counts from the first value", "*/25 * * * *", "2024-01-01T00:50:00", "2024-01-01T01:00:00"),
    ("a stepped range stays in its range", "1-30/10 * * * *", "2024-01-01T00:21:00", "2024-01-01T01:01:00"),
    ("a stepped value runs to the end", "5/15 * * * *", "2024-01-01T00:35:00", "2024-01-01T00:50:00"),
    ("a stepped value starts at itself", "5/15 * * * *", "2024-01-01T00:50:00", "2024-01-01T01:05:00"),
    ("six fields start with seconds", "*/20 * * * * *", "2024-01-01T00:00:20", "2024-01-01T00:00:40"),
    ("seconds carry into the next minute", "15 * * * * *", "2024-01-01T00:00:15", "2024-01-01T00:01:15"),
    ("months have names", "0 0 1 mar *", "2024-01-01T00:00:00", "2024-03-01T00:00:00"),
    ("months have ranges of names", "0 0 1 JAN-Mar *", "2024-03-01T00:00:00", "2025-01-01T00:00:00"),
    ("weekdays have names", "0 0 * * Fri", "2024-01-01T00:00:00", "2024-01-05T00:00:00"),
    ("weekdays have ranges of names", "0 0 * * MON-FRI", "2024-01-05T00:00:00", "2024-01-08T00:00:00"),
    ("Sunday is 0", "0 0 * * 0", "2024-01-01T00:00:00", "2024-01-07T00:00:00"),
    ("Sunday is 7", "0 0 * * 7", "2024-01-01T00:00:00", "2024-01-07T00:00:00"),
    ("Sunday may end a range as 7", "0 0 * * 6-7", "2024-01-06T00:00:00", "2024-01-07T00:00:00"),
    ("a stepped weekday 7 is Sunday only", "0 0 * * 7/2", "2024-01-07T00:00:00", "2024-01-14T00:00:00"),
    ("a question mark is a star for days", "0 0 ? * MON", "2024-01-01T00:00:00", "2024-01-08T00:00:00"),
    ("a question mark is a star for weekdays", "0 0 15 * ?", "2024-01-01T00:00:00", "2024-01-15T00:00:00"),
    ("day or weekday, by weekday", "0 0 13 * FRI", "2024-01-01T00:00:00", "2024-01-05T00:00:00"),
    ("day or weekday, by day", "0 0 13 * FRI", "2024-01-12T00:00:00", "2024-01-13T00:00:00"),
    ("day by stepped star and weekday", "0 0 */2 * MON", "2024-01-01T00:00:00", "2024-01-15T00:00:00"),
    ("day and weekday by stepped star", "0 0 14 * */7", "2024-01-01T00:00:00", "2024-01-14T00:00:00"),
    ("a short month is left out", "0 0 31 * *", "2024-03-31T00:00:00", "2024-05-31T00:00:00"),
    ("a leap day is waited for", "0 0 29 2 *", "2024-02-29T00:00:00", "2028-02-29T00:00:00"),
    ("a leap day is waited for over 2100", "0 0 29 2 *", "2096-02-29T00:00:00", "2104-02-29T00:00:00"),
    ("a leap day on a Sunday is waited for", "0 * 29 2 */7", "2024-03-01T00:00:00", "2032-02-29T00:00:00"),
    ("the year ends", "59 23 31 12 *", "2024-12-31T23:59:00", "2025-12-31T23:59:00"),
    ("moments before 1970 count", "0 0 1 1 *", "1959-06-01T00:00:00", "1960-01-01T00:00:00"),
    ("@yearly", "@yearly", "2024-01-01T00:00:00", "2025-01-01T00:00:00"),
    ("@annually", "@annually", "2024-01-01T00:00:00", "2025-01-01T00:00:00"),
    ("@monthly", "@monthly", "2024-01-01T00:00:00", "2024-02-01T00:00:00"),
    ("@weekly", "@weekly", "2024-01-01T00:00:00", "2024-01-07T00:00:00"),
    ("@daily", "@daily", "2024-01-01T00:00:00", "2024-01-02T00:00:00"),
    ("@midnight in capitals", "@MIDNIGHT", "2024-01-01T00:00:00", "2024-01-02T00:00:00"),
    ("@hourly", "@hourly", "2024-01-01T00:00:00", "2024-01-01T01:00:00"),
]


@pytest.mark.parametrize("expression, after, expected", [pytest.param(*case[1:], id=case[0]) for case in SYNTAX])
def test_each_way_to_write_a_field_ticks_when_it_says(expression: str, after: str, expected: str) -> None:
    assert next_tick(parse_cron(expression), moment(after)) == moment(expected)


ERRORS = [
    ("61 * * * *", "minute must be 0 to 59, got '61'"),
    ("60 0 0 * * *", "second must be 0 to 59, got '60'"),
    ("0 24 * * *", "hour must be 0 to 23, got '24'"),
    ("0 0 0 * *", "day must be 1 to 31, got '0'"),
    ("0 0 L * *", "day must be 1 to 31, got 'L'"),
    ("0 0 1 13 *", "month must be 1 to 12 or JAN to DEC, got '13'"),
    ("0 0 1 JANUARY *", "month must be 1 to 12 or JAN to DEC, got 'JANUARY'"),
    ("0 0 * * 8", "weekday must be 0 to 7 or SUN to SAT, got '8'"),
    ("0 0 * * MON-8", "weekday must be 0 to 7 or SUN to SAT, got '8' in 'MON-8'"),
    ("? 0 * * *", "minute must be 0 to 59, got '?'"),
    ("-5 * * * *", "minute must be 0 to 59, got '' in '-5'"),
    ("1-2-3 * * * *", "minute must be 0 to 59, got '2-3' in '1-2-3'"),
    ("/5 * * * *", "minute must be 0 to 59, got '' in '/5'"),
    ("٣ * * * *", "minute must be 0 to 59, got '٣'"),
    ("99999 * * * *", "minute must be 0 to 59, got '99999'"),
    ("1,,2 * * * *", "minute must have a value on each side of a comma, got '1,,2'"),
    ("*/0 * * * *", "minute step must be 1 to 60, got '0' in '*/0'"),
    ("*/90 * * * *", "minute step must be 1 to 60, got '90' in '*/90'"),
    ("0 */x * * *", "hour step must be 1 to 24, got 'x' in '*/x'"),
    ("0 */ * * *", "hour step must be 1 to 24, got '' in '*/'"),
    ("0 0 * * FRI-MON", "weekday range must rise, got 'FRI-MON'; write 'FRI-SAT,SUN-MON'"),
    ("0 0 * * fri-sun", "weekday range must rise, got 'fri-sun'; write 'fri-SAT,sun'"),
    ("0 0 * * SAT-TUE", "weekday range must rise, got 'SAT-TUE'; write 'SAT,SUN-TUE'"),
    ("0 0 * * 7-2", "weekday range must rise, got '7-2'; write '0-2'"),
    ("0 0 1 NOV-FEB *", "month range must rise, got 'NOV-FEB'; write 'NOV-DEC,JAN-FEB'"),
    ("0 22-2 * * *", "hour range must rise, got '22-2'; write '22-23,0-2'"),
    ("0 21-3/2 * * *", "hour range must rise, got '21-3/2'; write '21,23,1,3'"),
    ("* * * *", "expected 5 fields (minute hour day month weekday), or 6 with seconds first, got 4"),
    ("* * * * * * *", "expected 5 fields (minute hour day month weekday), or 6 with seconds first, got 7"),
    ("", "expected 5 fields (minute hour day month weekday), or 6 with seconds first, got 0"),
    (
        "@reboot",
        "alias must be one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, got '@reboot'",
    ),
]


@pytest.mark.parametrize("expression, message", ERRORS)
def test_a_wrong_expression_is_refused_with_its_field_and_its_text(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"cron {expression!r}: {message}") + "$"):
        parse_cron(expression)


@pytest.mark.parametrize(
    "tz, suggestion",
    [
        pytest.param("Europe/Pari", "Europe/Paris", id="a letter is missing"),
        pytest.param("europe/paris", "Europe/Paris", id="no capitals"),
        pytest.param("paris", "Europe/Paris", id="the city alone"),
        pytest.param("New York", "America/New_York", id="a space"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_near_names(tz: str, suggestion: str) -> None:
    opening = f"time zone must be a name from the IANA database, got {tz!r}; did you mean {suggestion}"
    with pytest.raises(ValueError, match="^" + re.escape(opening)):
        parse_cron("* * * * *", tz)


@pytest.mark.parametrize("tz", ["", "America", "/etc/localtime", "../UTC", "a\0b", "x" * 5000])
def test_a_time_zone_that_is_no_name_at_all_is_a_value_error(tz: str) -> None:
    with pytest.raises(ValueError, match="time zone must be a name"):
        parse_cron("* * * * *", tz)


def test_a_cron_is_a_value_that_compares_hashes_and_travels() -> None:
    cron = parse_cron("*/5 * * * *", "Europe/Paris")
    assert cron == Cron("*/5 * * * *", tz="Europe/Paris")
    assert {cron, Cron("*/5 * * * *", tz="Europe/Paris")} == {cron}
    assert cron != Cron("*/5 * * * *")
    assert repr(cron) == "Cron(expression='*/5 * * * *', tz='Europe/Paris')"
    travelled = pickle.loads(pickle.dumps(cron))
    assert next_tick(travelled, 0) == next_tick(cron, 0)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 * 31 4,6 *", "0 0 31 2 */2"])
def test_a_date_that_never_comes_has_no_tick(expression: str) -> None:
    assert next_tick(parse_cron(expression), 0) is None
    assert ticks_between(parse_cron(expression), 0, moment("2030-01-01"), limit=5) == []


def test_a_tick_is_strictly_after_a_moment_to_the_millisecond() -> None:
    cron = parse_cron("* * * * *")
    assert [next_tick(cron, after_at) for after_at in (-1, 0, 59_999, 60_000)] == [0, 60_000, 60_000, 120_000]


@pytest.mark.parametrize("expression", ["0 0 1 1 *", "0 * * * *"])
def test_moments_beyond_the_calendar_are_no_error(expression: str) -> None:
    cron = parse_cron(expression, "Europe/Paris")
    assert next_tick(cron, 10**18) is None
    assert next_tick(cron, moment("9998-12-31T23:59:59")) is None
    first_tick_at = next_tick(cron, -(10**18))
    assert first_tick_at is not None
    assert reading(first_tick_at, "UTC").year in (2, 3)


# T4. Paris: 2024-03-31 02:00 becomes 03:00 at 01:00 UTC; 2024-10-27 03:00 becomes 02:00 at 01:00 UTC.
# T4. New York: 2024-03-10 02:00 becomes 03:00 at 07:00 UTC; 2024-11-03 02:00 becomes 01:00 at 06:00 UTC.
# T4. Lord Howe: 2024-10-06 02:00 becomes 02:30 at 15:30 UTC of the 5th; 2024-04-07 02:00 becomes 01:30 at 15:00 UTC.
# T4. Nuuk: 2024-03-30 23:00 becomes 00:00 of the 31st at 01:00 UTC. Apia had no 2011-12-30, at 10:00 UTC.
FIXED = [
    ("Paris forward 01:59 is untouched", "59 1 * * *", "Europe/Paris", "2024-03-30T12", ["31 00:59", "31 23:59"]),
    ("Paris forward 02:00 moves to 03:00", "0 2 * * *", "Europe/Paris", "2024-03-30T12", ["31 01:00", "01 00:00"]),
    ("Paris forward 02:30 moves to 03:00", "30 2 * * *", "Europe/Paris", "2024-03-30T12", ["31 01:00", "01 00:30"]),
    ("Paris forward 03:00 is untouched", "0 3 * * *", "Europe/Paris", "2024-03-30T12", ["31 01:00", "01 01:00"]),
    ("Paris back 01:59 is untouched", "59 1 * * *", "Europe/Paris", "2024-10-26T12", ["26 23:59", "28 00:59"]),
    ("Paris back 02:00 is the first", "0 2 * * *", "Europe/Paris", "2024-10-26T12", ["27 00:00", "28 01:00"]),
    ("Paris back 02:30 is the first", "30 2 * * *", "Europe/Paris", "2024-10-26T12", ["27 00:30", "28 01:30"]),
    ("Paris back 03:00 is untouched", "0 3 * * *", "Europe/Paris", "2024-10-26T12", ["27 02:00", "28 02:00"]),
    ("New York forward 01:59", "59 1 * * *", "America/New_York", "2024-03-09T12", ["10 06:59", "11 05:59"]),
    ("New York forward 02:00", "0 2 * * *", "America/New_York", "2024-03-09T12", ["10 07:00", "11 06:00"]),
    ("New York forward 02:30", "30 2 * * *", "America/New_York", "2024-03-09T12", ["10 07:00", "11 06:30"]),
    ("New York forward 03:00", "0 3 * * *", "America/New_York", "2024-03-09T12", ["10 07:00", "11 07:00"]),
    ("New York back 01:30 is the first", "30 1 * * *", "America/New_York", "2024-11-02T12", ["03 05:30", "04 06:30"]),
    ("New York back 01:59 is the first", "59 1 * * *", "America/New_York", "2024-11-02T12", ["03 05:59", "04 06:59"]),
    ("New York back 02:00", "0 2 * * *", "America/New_York", "2024-11-02T12", ["03 07:00", "04 07:00"]),
    ("New York back 02:30", "30 2 * * *", "America/New_York", "2024-11-02T12", ["03 07:30", "04 07:30"]),
    ("New York back 03:00", "0 3 * * *", "America/New_York", "2024-11-02T12", ["03 08:00", "04 08:00"]),
    ("Lord Howe forward 01:59", "59 1 * * *", "Australia/Lord_Howe", "2024-10-05T12", ["05 15:29", "06 14:59"]),
    ("Lord Howe forward 02:00", "0 2 * * *", "Australia/Lord_Howe", "2024-10-05T12", ["05 15:30", "06 15:00"]),
    ("Lord Howe forward 02:15", "15 2 * * *", "Australia/Lord_Howe", "2024-10-05T12", ["05 15:30", "06 15:15"]),
    ("Lord Howe forward 02:30", "30 2 * * *", "Australia/Lord_Howe", "2024-10-05T12", ["05 15:30", "06 15:30"]),
    ("Lord Howe forward 03:00", "0 3 * * *", "Australia/Lord_Howe", "2024-10-05T12", ["05 16:00", "06 16:00"]),
    ("Lord Howe back 01:30", "30 1 * * *", "Australia/Lord_Howe", "2024-04-06T12", ["06 14:30", "07 15:00"]),
    ("Lord Howe back 01:59", "59 1 * * *", "Australia/Lord_Howe", "2024-04-06T12", ["06 14:59", "07 15:29"]),
    ("Lord Howe back 02:00", "0 2 * * *", "Australia/Lord_Howe", "2024-04-06T12", ["06 15:30", "07 15:30"]),
    ("Lord Howe back 03:00", "0 3 * * *", "Australia/Lord_Howe", "2024-04-06T12", ["06 16:30", "07 16:30"]),
    ("Nuuk forward over midnight", "30 23 * * *", "America/Nuuk", "2024-03-30T12", ["31 01:00", "01 00:30"]),
    ("Apia's lost date", "0 9 * * *", "Pacific/Apia", "2011-12-29T12", ["29 19:00", "30 10:00", "30 19:00"]),
    ("Apia's lost monthly date", "0 9 30 * *", "Pacific/Apia", "2011-12-29T12", ["30 10:00"]),
    ("no daylight saving in Tokyo", "30 2 * * *", "Asia/Tokyo", "2024-03-30T12", ["30 17:30", "31 17:30"]),
    ("skipped times become one", "*/10 2 * * *", "Europe/Paris", "2024-03-31T00", ["31 01:00", "01 00:00"]),
    ("skipped and present become one", "0,30 2,3 31 * *", "Europe/Paris", "2024-03-31T00", ["31 01:00", "31 01:30"]),
]


@pytest.mark.parametrize("expression, tz, after, expected", [pytest.param(*case[1:], id=case[0]) for case in FIXED])
def test_rules_2_and_3_a_fixed_time_ticks_once_through_a_change_of_clocks(
    expression: str, tz: str, after: str, expected: list[str]
) -> None:
    until = (datetime.fromisoformat(after) + timedelta(days=3)).isoformat()
    assert utc_ticks(expression, tz, after, until)[: len(expected)] == expected  # T4


@pytest.mark.parametrize("time_in_second_pass", ["02:00:00", "02:10:00", "02:30:00", "02:59:59"])
def test_rule_3_a_second_pass_holds_no_tick_of_a_fixed_time(time_in_second_pass: str) -> None:
    after_at = moment(f"2024-10-27T{time_in_second_pass}", "Europe/Paris", fold=1)
    for expression in ("30 2 * * *", "* 2 * * *", "* * 2 * * *"):
        tick_at = next_tick(parse_cron(expression, "Europe/Paris"), after_at)
        assert tick_at is not None
        assert reading(tick_at, "Europe/Paris").day == 28  # T4


CHANGES = [
    ("Paris forward", "Europe/Paris", "2024-03-31T01:00:00"),
    ("Paris back", "Europe/Paris", "2024-10-27T01:00:00"),
    ("New York forward", "America/New_York", "2024-03-10T07:00:00"),
    ("New York back", "America/New_York", "2024-11-03T06:00:00"),
    ("Lord Howe forward", "Australia/Lord_Howe", "2024-10-05T15:30:00"),
    ("Lord Howe back", "Australia/Lord_Howe", "2024-04-06T15:00:00"),
    ("Apia's lost date", "Pacific/Apia", "2011-12-30T10:00:00"),
    ("Tokyo, which changes nothing", "Asia/Tokyo", "2024-03-31T01:00:00"),
]


@pytest.mark.parametrize("tz, change", [pytest.param(*case[1:], id=case[0]) for case in CHANGES])
@pytest.mark.parametrize("minutes", [1, 5, 15, 30])
def test_rule_4_a_flowing_cron_keeps_its_pace_through_a_change_of_clocks(tz: str, change: str, minutes: int) -> None:
    hours_ms = 3 * 3_600_000
    change_at = moment(change)
    found = ticks_between(
        parse_cron(f"*/{minutes} * * * *", tz), change_at - hours_ms, change_at + hours_ms, limit=1000
    )
    step_ms = minutes * 60_000
    assert found == list(range(change_at - hours_ms + step_ms, change_at + hours_ms + 1, step_ms))  # T4


FLOWING: list[tuple[str, str, str, str, list[str]]] = [
    ("hourly, Paris forward", "0 * * * *", "Europe/Paris", "2024-03-30T23", ["31 00:00", "31 01:00", "31 02:00"]),
    ("hourly, Paris back", "0 * * * *", "Europe/Paris", "2024-10-26T23", ["27 00:00", "27 01:00", "27 02:00"]),
    ("hourly, New York back", "30 * * * *", "America/New_York", "2024-11-03T04:45", ["03 05:30", "03 06:30"]),
    ("a skipped even hour is not made up", "0 */2 * * *", "Europe/Paris", "2024-03-30T22", ["30 23:00", "31 02:00"]),
    ("a doubled even hour ticks twice", "0 */2 * * *", "Europe/Paris", "2024-10-26T23", ["27 00:00", "27 01:00"]),
    ("half an hour forward", "0 * * * *", "Australia/Lord_Howe", "2024-10-05T14", ["05 14:30", "05 16:00"]),
    ("half an hour back", "45 * * * *", "Australia/Lord_Howe", "2024-04-06T14", ["06 14:45", "06 15:15", "06 16:15"]),
    ("hourly over Apia's lost date", "0 * * * *", "Pacific/Apia", "2011-12-30T08", ["30 09:00", "30 10:00"]),
    ("hourly on Apia's lost date", "0 * 30 12 *", "Pacific/Apia", "2011-12-29T00", []),
]


@pytest.mark.parametrize("expression, tz, after, expected", [pytest.param(*case[1:], id=case[0]) for case in FLOWING])
def test_rule_4_a_flowing_cron_ticks_whenever_its_local_time_is_read(
    expression: str, tz: str, after: str, expected: list[str]
) -> None:
    until = (datetime.fromisoformat(after) + timedelta(days=3)).isoformat()
    found = utc_ticks(expression, tz, after, until)
    assert (found[: len(expected)] if expected else found) == expected  # T4


def test_ticks_between_leaves_out_its_start_and_includes_its_end() -> None:
    cron = parse_cron("* * * * *")
    assert ticks_between(cron, 60_000, 180_000, limit=10) == [120_000, 180_000]
    assert ticks_between(cron, 60_000, 179_999, limit=10) == [120_000]
    assert ticks_between(cron, 60_000, 60_000, limit=10) == []
    assert ticks_between(cron, 180_000, 60_000, limit=10) == []
    assert ticks_between(cron, 60_000, 180_000, limit=0) == []


def test_ticks_between_keeps_the_last_ticks_of_a_long_absence() -> None:
    until_at = moment("2024-01-01")
    expected = [until_at - 2000, until_at - 1000, until_at]
    assert ticks_between(parse_cron("* * * * * *"), 0, until_at, limit=3) == expected
    # Ticks that are dense long before the end are the hard case for halving the time.
    assert ticks_between(parse_cron("* * * 1 1 *"), 0, moment("2023-12-01"), limit=2) == [
        moment("2023-01-01T23:59:58"),
        moment("2023-01-01T23:59:59"),
    ]


ZONES = ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo", "Asia/Kathmandu"]
zones = st.sampled_from(ZONES)
moments = st.integers(moment("1995-01-01"), moment("2060-01-01"))


@st.composite
def fields(draw: st.DrawFn, first: int, last: int) -> str:
    low = draw(st.integers(first, last))
    high = draw(st.integers(low, last))
    step = draw(st.integers(1, last - first + 1))
    return draw(st.sampled_from(["*", f"*/{step}", f"{low}", f"{low},{high}", f"{low}-{high}", f"{low}-{high}/{step}"]))


@st.composite
def crons(draw: st.DrawFn) -> Cron:
    day = draw(st.one_of(st.just("*"), fields(1, 28)))
    time_and_date = [draw(fields(0, 59)), draw(fields(0, 23)), day, draw(fields(1, 12)), draw(fields(0, 6))]
    seconds = draw(st.one_of(st.just([]), fields(0, 59).map(lambda text: [text])))
    return parse_cron(" ".join([*seconds, *time_and_date]), draw(zones))


def matches(cron: Cron, local: datetime) -> bool:
    pattern = cron.pattern
    on_day, on_weekday = local.day in pattern.days, local.isoweekday() % 7 in pattern.weekdays
    return (
        local.second in pattern.seconds
        and local.minute in pattern.minutes
        and local.hour in pattern.hours
        and local.month in pattern.months
        and (on_day or on_weekday if pattern.either_day else on_day and on_weekday)
    )


def ends_a_gap(local: datetime) -> bool:
    second_before = (local.astimezone(UTC) - timedelta(seconds=1)).astimezone(local.tzinfo)
    earlier, later = second_before.utcoffset(), local.utcoffset()
    assert earlier is not None
    assert later is not None
    return earlier < later


@given(crons(), moments)
def test_a_tick_is_after_its_moment_and_its_local_time_matches_outside_a_gap(cron: Cron, after_at: int) -> None:
    tick_at = next_tick(cron, after_at)
    if tick_at is not None:
        assert tick_at > after_at
        local = reading(tick_at, cron.tz)
        assert matches(cron, local) or (not cron.pattern.flowing and ends_a_gap(local))  # T4


@given(crons(), moments, st.integers(0, 400 * 86_400_000))
def test_a_later_moment_never_has_an_earlier_tick(cron: Cron, after_at: int, later_ms: int) -> None:
    sooner, later = next_tick(cron, after_at), next_tick(cron, after_at + later_ms)
    assert later is None or (sooner is not None and sooner <= later)
    if sooner is not None and sooner > after_at + later_ms:
        assert later == sooner


@given(crons(), moments, st.integers(0, 300), st.integers(1, 20))
def test_ticks_between_agrees_with_repeated_next_tick(cron: Cron, after_at: int, count: int, limit: int) -> None:
    expected: list[int] = []
    until_at = after_at
    while len(expected) < count and (tick_at := next_tick(cron, until_at)) is not None:
        expected.append(tick_at)
        until_at = tick_at
    assert ticks_between(cron, after_at, until_at, limit=limit) == expected[-limit:]


@given(zones, st.integers(0, 23), st.integers(0, 59), st.integers(1995, 2060))
def test_a_fixed_daily_cron_ticks_exactly_once_on_each_local_date(tz: str, hour: int, minute: int, year: int) -> None:
    cron = parse_cron(f"{minute} {hour} * * *", tz)
    after_at, until_at = moment(f"{year}-01-01T00:00:00", tz) - 1, moment(f"{year}-12-31T23:59:59", tz)
    dates = [reading(tick_at, tz).date() for tick_at in ticks_between(cron, after_at, until_at, limit=400)]
    first = datetime(year, 1, 1).date()
    assert dates == [first + timedelta(days=number) for number in range(len(dates))]  # T4
    assert dates[-1] == datetime(year, 12, 31).date()


def test_an_interval_ticks_at_each_multiple_of_its_seconds() -> None:
    cron = parse_cron("@every 90s", "Europe/Paris")
    assert ticks_between(cron, 0, 300_000, limit=10) == [90_000, 180_000, 270_000]
    assert next_tick(cron, 90_000) == 180_000
    assert next_tick(cron, 90_001) == 180_000


@pytest.mark.parametrize("expression", ["@every", "@every 0s", "@every 1.5s", "@every -3s", "@every 99999999999999s"])
def test_an_interval_is_a_whole_number_of_seconds(expression: str) -> None:
    with pytest.raises(ValueError, match="@every must have 1s to 31622400s"):
        parse_cron(expression)
