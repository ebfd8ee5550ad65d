"""The help of every command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cyclopts import App

from headway.cli.main import build
from tests.cli.command import Cli


def _commands(app: App, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command, without those that only have commands of their own."""
    below = [name for name in app if not name.startswith("-")]
    for name in below:
        yield from _commands(app[name], *words, name)
    if words and not below:
        yield words


COMMANDS = list(_commands(build()))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_names_each_value_in_words_and_not_by_its_type(cli: Cli, words: tuple[str, ...]) -> None:
    assert re.findall(r"--\S+ +((?:INT|STR|FLOAT|BOOL|PATH)\b.*)", cli.call(*words, "--help").out) == []


@pytest.mark.parametrize("words", [("submit", "demo.noop"), ("jobs",), ("dlq", "list")], ids=" ".join)
def test_a_lane_may_be_given_as_lane_or_as_priority(cli: Cli, words: tuple[str, ...]) -> None:
    cli.submit("demo.noop", "--lane", "low")
    for option in ("--lane", "--priority"):
        cli.call(*words, option, "low")
    assert {job["priority"] for job in cli.call("jobs", "--lane", "low", "--json").json["items"]} == {"low"}
    assert cli.call("jobs", "--lane", "high", "--json").json["items"] == []
