"""The help of every command."""

from __future__ import annotations

import pytest

from tests.cli.command import Cli


@pytest.mark.parametrize("words", [("submit", "demo.noop"), ("jobs",), ("dlq", "list")], ids=" ".join)
def test_a_lane_may_be_given_as_lane_or_as_priority(cli: Cli, words: tuple[str, ...]) -> None:
    cli.submit("demo.noop", "--lane", "low")
    for option in ("--lane", "--priority"):
        cli.call(*words, option, "low")
    assert {job["priority"] for job in cli.call("jobs", "--lane", "low", "--json").json["items"]} == {"low"}
    assert cli.call("jobs", "--lane", "high", "--json").json["items"] == []
