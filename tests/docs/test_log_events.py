"""Every log line of Headway begins with a code, and the page of logs lists each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.observability import outage

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headway"
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
CODE = re.compile(r"[a-z_]+(\.[a-z_]+)+")
# Calls whose code is put together: these are the codes.
COMPOSED = {
    "job.": ["job.queued", "job.started", "job.completed", "job.failed", "job.retried", "job.released", "job.cancelled",
             "job.dead_letter", "job.lost", "job.downgraded"],
}  # fmt: skip


def logged() -> Iterator[tuple[str, ast.expr | None, bool]]:
    """Yield the place of each call of a logger, its first argument, and whether it has others."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            on = node.func.value
            name = on.id if isinstance(on, ast.Name) else on.attr if isinstance(on, ast.Attribute) else ""
            if name in ("log", "_log", "job_log", "logger") and node.func.attr in (*METHODS, "log"):
                skip = 1 if node.func.attr == "log" else 0
                where = f"{path.relative_to(SOURCE)}:{node.lineno}"
                yield where, node.args[skip] if len(node.args) > skip else None, len(node.args) > skip + 1


def codes_of(message: ast.expr | None) -> list[str]:
    """Return the codes that a message may have, or none if the message has no code."""
    match message:
        case ast.Constant(value=str(text)) if CODE.fullmatch(text):
            return [text]
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text in COMPOSED:
            return COMPOSED[text]
        case ast.Call(func=ast.Name(id="LogEvent"), args=[ast.Name(id=name)]) if hasattr(outage, name):
            return [getattr(outage, name)]
        case ast.Call(func=ast.Name(id="LogEvent"), args=[code]):
            return codes_of(code)
        case ast.Name(id="event"):  # Made a line above, and found there by the next test.
            return ["job.started"]
    return []


def documented() -> set[str]:
    page = (ROOT / "docs" / "reference" / "logs.md").read_text()
    return {
        code for row in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE) for code in re.findall(r"`([^`]+)`", row)
    }


def made() -> set[str]:
    """Return every code that the source contains."""
    codes = {code for _, message, _ in logged() for code in codes_of(message)}
    for path in SOURCE.rglob("*.py"):
        codes |= set(re.findall(r'LogEvent\(\s*"([^"]+)"', path.read_text()))
    return codes


@pytest.mark.parametrize("where, message, more", [pytest.param(*call, id=call[0]) for call in logged()])
def test_a_line_begins_with_a_code_and_its_facts_are_members(where: str, message: ast.expr, more: bool) -> None:
    assert codes_of(message), f"{where}: log a LogEvent with a code, see docs/reference/logs.md"
    assert not more, f"{where}: give facts to LogEvent, not to the text"


def test_every_code_is_documented_and_no_other() -> None:
    assert len(made()) > 40
    extra = {"log.message", "log.dropped"}  # Made where lines are written.
    rows = {code for code in documented() if CODE.fullmatch(code)}
    assert made() | extra == rows
