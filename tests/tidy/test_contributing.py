"""Every package and every path that CONTRIBUTING.md names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headway"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGES = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return lines[1:]  # The first is the head of the table.


def test_the_map_names_every_package() -> None:
    named = [re.fullmatch(r"`(\w+)/`", name) for name, _ in rows("The packages")]
    assert {match[1] for match in named if match} == PACKAGES
    assert len(named) == len(PACKAGES)


def test_the_map_lists_packages_in_the_order_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"(?<!\()headway\.(\w+)", layer) for layer in contracts[0]["layers"]]
    assert [name for layer in layers for name in layer] == [name.strip("`/") for name, _ in rows("The packages")]


def test_every_file_that_the_table_of_changes_names_exists() -> None:
    table = rows("To change something")
    assert len(table) >= 15
    for change, start, then, tests in table:
        for cell in (start, then, tests):
            paths = [path for path in re.findall(r"`([\w./-]+)`", cell) if "/" in path]
            assert paths, f"{change}: {cell}"
            for path in paths:
                assert (SOURCE / path).exists() or (ROOT / path).exists(), f"{change}: {path} does not exist"


def test_other_files_that_the_page_names_exist() -> None:
    for path in re.findall(r"`((?:core|client|stores|worker|dispatch|tests|docs|scripts)/[\w./-]+)`", PAGE):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path
