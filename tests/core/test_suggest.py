"""Suggestions for mistyped names."""

from __future__ import annotations

import pytest

from headway.core.suggest import did_you_mean


@pytest.mark.parametrize(
    "name, known, suggestion",
    [
        pytest.param("hihg", ["high", "medium", "low"], "high", id="letters swapped"),
        pytest.param("tasks.sleepi", ["tasks.sleepy", "tasks.send"], "tasks.sleepy", id="one letter"),
        pytest.param("report.export", ["reports.export"], "reports.export", id="another module"),
        pytest.param("tasks.nonexistent", ["tasks.sleepy", "tasks.send"], None, id="only the module is alike"),
        pytest.param("estimate", ["stats", "status"], None, id="another word"),
        pytest.param("Reserved", ["reserved", "slots"], "reserved", id="capitals"),
        pytest.param("crash", ["lanes", "crash_limit"], "crash_limit", id="the beginning"),
        pytest.param("x", [], None, id="nothing known"),
    ],
)
def test_only_a_name_that_is_really_alike_is_suggested(name: str, known: list[str], suggestion: str | None) -> None:
    assert did_you_mean(name, known) == ("" if suggestion is None else f"; did you mean {suggestion!r}?")
