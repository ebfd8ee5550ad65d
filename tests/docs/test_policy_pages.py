"""The pages on scheduling agree with the code: commands print what they show, and no key or code is missing."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.policy import lint
from headway.core.policy.document import BUILT_IN
from headway.core.policy.reader import read_policy
from headway.core.policy.why import CODES
from headway.core.policy.writer import policy_data
from tests.cli.command import Cli

DOCS = Path(__file__).parents[2] / "docs"
# These need servers and projects of their own, and are followed by tests of their own.
ELSEWHERE = {"celery.md", "django.md", "interactive-sessions.md"}
HOW_TO = sorted(page.name for page in (DOCS / "how-to").glob("*.md") if page.name not in ELSEWHERE)
REFERENCE = DOCS / "reference" / "policy.md"

# Every key that a policy can have.
ALL_KEYS = {
    "lanes": {"only": {"level": 0}},
    "reserve": {"lanes": ["only"]},
    "ladder": {"rungs": [{"name": "fast", "seconds": 3, "limit": 1}]},
    "limits": {
        "some": {"concurrency": 1, "rate": "1/s", "burst": 2, "by": "account", "tasks": ["a"], "scope": "global"}
    },
    "tasks": {"a": {"priority": "only", "duration": "fast", "timeout": 1, "max_retries": 1, "fair_by": "account"}},
}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Return the language and the text of the fenced blocks of a page."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def rows(page: Path, heading: str) -> set[str]:
    """Return the first cells of the table under a heading."""
    section = page.read_text().partition(f"\n{heading}\n")[2]
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOW_TO)
def test_what_a_how_to_shows_is_what_you_see(name: str, tmp_path: Path) -> None:
    """Files that a block names in its first line are written; ``$`` lines of a ``console`` block are run."""
    Cli(tmp_path).call("migrate")
    for language, block in blocks(DOCS / "how-to" / name):
        if found := re.match(r"# (\S+\.\w+)\n", block):
            (tmp_path / found[1]).write_text(block)
        if language != "console":
            continue
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            out = _run(command, tmp_path)
            assert out.count("\n") == shown.count("\n"), out
            for line, pattern in zip(out.split("\n"), shown.split("\n"), strict=True):
                assert re.fullmatch(_pattern(pattern), " ".join(line.split())), (command, line)


def _run(command: str, folder: Path) -> str:
    cli = Cli(folder)
    if command.startswith("headway ") and ">" not in command:
        return cli.call(*shlex.split(command)[1:]).out
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=cli.environment({"PATH": path}), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in " ".join(line.split()).split("…"))


@pytest.mark.parametrize("page", [REFERENCE, *(DOCS / "how-to" / name for name in HOW_TO)], ids=lambda page: page.name)
def test_every_policy_that_is_shown_can_be_used(page: Path) -> None:
    for language, block in blocks(page):
        if language == "toml":
            read_policy(tomllib.loads(block), page.name)


def test_the_built_in_policy_is_shown_as_it_is() -> None:
    block = next(block for language, block in blocks(REFERENCE) if language == "toml")
    assert tomllib.loads(block) == policy_data(BUILT_IN)


def test_every_key_of_a_policy_is_in_the_reference() -> None:
    full: dict[str, Any] = policy_data(read_policy(ALL_KEYS, "all keys"))
    assert rows(REFERENCE, "## Keys") == {key for key, value in full.items() if not isinstance(value, dict)}
    for name in ("reserve", "tenants", "retry", "keep"):
        assert rows(REFERENCE, f"### `[{name}]`") == set(full[name])
    rungs = {f"rungs[].{key}" for key in full["ladder"]["rungs"][0]}
    assert rows(REFERENCE, "### `[ladder]`") == set(full["ladder"]) | rungs
    assert rows(REFERENCE, "### `[lanes.NAME]`") == set(full["lanes"]["only"])
    assert rows(REFERENCE, "### `[limits.NAME]`") == set(full["limits"]["some"])
    # The limits of a task are written with all others.
    assert rows(REFERENCE, '### `[tasks."NAME"]`') == {*full["tasks"]["a"], "limits"}


def test_every_warning_of_policy_check_is_in_the_reference() -> None:
    codes = set(re.findall(r'Finding\(\s*"(\w+)"', inspect.getsource(lint)))
    assert codes
    assert rows(REFERENCE, "## What `policy check` says") == codes


def test_every_reason_to_wait_is_explained() -> None:
    assert rows(DOCS / "how-to" / "why-is-my-job-waiting.md", "## The reasons") == set(CODES)
