"""The page on installing explains every dependency, and uses the name of the distribution in the index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text()
NAME = "headway-queue"
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "src" / "headway").rglob("*.py")),
]


def package(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found[0]


def test_the_distribution_is_not_named_like_the_import() -> None:
    assert PROJECT["name"] == NAME
    assert PROJECT["scripts"] == {"headway": "headway.cli.main:main"}


def test_the_page_says_why_each_dependency_is_there() -> None:
    plain, extras = PAGE.split("## What an extra adds")
    assert re.findall(r"^\| `([\w-]+)` \| \w", plain, re.MULTILINE) == [package(one) for one in PROJECT["dependencies"]]
    rows = re.findall(r"^\| `([\w-]+)` \| `([\w-]+)` \| [\w[]", extras, re.MULTILINE)
    assert rows == [(extra, package(one)) for extra, needed in EXTRAS.items() if extra != "all" for one in needed]


def test_no_dependency_is_for_a_system_on_which_headway_does_not_run() -> None:
    assert "does not run on Windows" in (ROOT / "README.md").read_text()
    assert [one for one in PROJECT["dependencies"] if re.search(r"== ?'(Windows|win32)'", one)] == []


def test_all_means_every_other_extra() -> None:
    assert EXTRAS["all"] == [f"{NAME}[{','.join(extra for extra in EXTRAS if extra != 'all')}]"]


def test_an_advice_to_install_names_this_distribution_and_a_known_extra() -> None:
    for file in TEXTS:
        text = file.read_text()
        assert re.findall(r"pip install '?headway(?!-queue)\b.*", text) == [], file
        assert re.findall(r"(?<![\w.])headway\[(?:" + "|".join(EXTRAS) + r")\b", text) == [], file
        for extras in re.findall(rf"{NAME}\[([a-z,]+)\]", text):
            assert set(extras.split(",")) <= EXTRAS.keys(), file


def test_every_install_hint_of_an_error_is_checked_here() -> None:
    hints = [file.name for file in TEXTS if file.suffix == ".py" and f"{NAME}[" in file.read_text()]
    assert {"open.py", "serve.py", "session_transport.py", "celery.py", "address.py"} <= set(hints)
