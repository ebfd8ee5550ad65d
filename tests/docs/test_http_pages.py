"""The pages on the HTTP interface agree with the service."""

from __future__ import annotations

import re
from pathlib import Path

from headway.server.problems import STATUSES
from tests.server.test_scopes import MATRIX

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "http.md").read_text()


def test_every_code_is_listed_with_its_status() -> None:
    listed = {
        code: int(row[1])
        for row in re.finditer(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", row[2])
    }
    assert listed == dict(STATUSES)


def test_every_route_is_in_the_table() -> None:
    table = PAGE.partition("## Bounds")[0]
    for route in MATRIX:
        _, path = route.split()
        if path.startswith(("/docs", "/openapi")):
            continue
        last = re.sub(r"\{\w+\}", "{id}", path)
        assert last in table or f"/{last.rpartition('/')[2]}`" in table, route
