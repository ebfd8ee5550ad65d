"""The page of limits agrees with the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from headway.client.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| ([\d,]+)(?: (\w+))? \| ([^|]*) \|$", PAGE, re.MULTILINE)
DAY_MS = 24 * 3_600_000
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "days": DAY_MS}


def value_of(where: str) -> float:
    """Return the value of a constant or setting by its name on the page."""
    if where.startswith("setting "):
        return float(getattr(Settings(), where.removeprefix("setting ").strip("`")))
    module, _, name = where.strip("`").rpartition(".")
    return float(getattr(import_module(module), name))


def test_the_page_has_the_bounds_of_every_part() -> None:
    assert len(ROWS) >= 35


@pytest.mark.parametrize("what, number, unit, where", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_the_value_of_the_code(what: str, number: str, unit: str, where: str) -> None:
    assert int(number.replace(",", "")) * UNITS.get(unit, 1) == value_of(where)
