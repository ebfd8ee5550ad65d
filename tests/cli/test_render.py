"""Output of values as text, times and tables."""

from __future__ import annotations

import json

import pytest

from headway.cli.live import log_line
from headway.cli.main import build
from headway.cli.render import clean, compact, duration
from headway.cli.submit import read_value


@pytest.mark.parametrize(
    "length_ms, text",
    [
        pytest.param(0, "0 ms", id="nothing"),
        pytest.param(-5, "0 ms", id="negative"),
        pytest.param(999, "999 ms", id="milliseconds"),
        pytest.param(2_500, "2.5 s", id="seconds"),
        pytest.param(200_000, "3 m 20 s", id="minutes"),
        pytest.param(7_200_000, "2 h", id="hours"),
        pytest.param(100 * 3_600_000, "4 d 4 h", id="days"),
        pytest.param(None, "–", id="none"),
    ],
)
def test_a_duration_has_at_most_two_units(length_ms: int | None, text: str) -> None:
    assert duration(length_ms) == text


@pytest.mark.parametrize(
    "text, value",
    [
        pytest.param("2", 2, id="number"),
        pytest.param('["a"]', ["a"], id="list"),
        pytest.param('"2"', "2", id="quoted"),
        pytest.param("Ada", "Ada", id="text"),
        pytest.param("", "", id="empty"),
        pytest.param("NaN", "NaN", id="not a JSON number"),
        pytest.param("[" * 100_000, "[" * 100_000, id="endless nesting"),
    ],
)
def test_a_value_is_json_where_possible(text: str, value: object) -> None:
    assert read_value(text) == value


def test_clean_lets_nothing_through_that_a_terminal_obeys() -> None:
    assert clean("a\x1b[31m\r\x9b\u202eb\ud800") == "a\\x1b[31m\\r\\x9b\\u202eb\\ud800"
    assert clean("one\ntwo\x07", lines=True) == "one\ntwo\\x07"
    assert clean("Grüße ✓") == "Grüße ✓"


def test_json_stays_the_same_document_when_it_is_made_safe() -> None:
    value = {"text": "\x9b\x7f\u202e\U000e0001ü\n"}
    assert compact(value).isprintable()
    assert json.loads(compact(value)) == value


def test_a_log_line_of_a_runner_is_told_in_short() -> None:
    line = {"at": "2030-01-01T00:00:00.000Z", "event": "job.retried", "task": "t[b]", "job": "id-1", "attempt": 2}
    drawn = log_line(json.dumps(line | {"seconds": 0.25, "error": "E: \x1b[0m"})).plain
    assert drawn.split()[1:] == ["retried", "t[b]", "id-1", "attempt", "2", "250", "ms", "E:", "\\x1b[0m"]
    assert log_line("print \x1b[2J of a task").plain == "print \\x1b[2J of a task"


def test_every_command_has_a_summary_and_an_example() -> None:
    app = build(described=True)
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        assert command.help or command.default_command is not None
        assert f"headway {name}" in (command.help_epilogue or "")
