"""Values of `headway submit` for parameters that are text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headway.cli.submit import fit_texts
from headway.client.app import Headway
from headway.policy_store.catalogue import TaskEntry, publish_tasks
from headway.stores.open import open_store
from tests.cli.command import Cli

SHOP = """
from datetime import date

from headway import Headway

app = Headway()


@app.task(name="shop.build_report")
def build_report(month: str, day: date | None = None, count: int = 1, anything=None) -> None: ...
"""


def arguments(cli: Cli) -> dict[str, Any]:
    found: dict[str, Any] = cli.call("jobs", "--json", "--limit", "1").json["items"][0]["arguments"]
    return found


def test_a_text_parameter_takes_what_is_written(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(SHOP)
    cli.call("submit", "shop.build_report", "month=2026", "count=3", "anything=7", "--app", "shop.py:app")
    assert arguments(cli) == {"month": "2026", "count": 3, "anything": 7}
    cli.call("submit", "shop.build_report", 'month="2026"', "day=2026-01-31", "--app", "shop.py:app")
    assert arguments(cli) == {"month": "2026", "day": "2026-01-31"}


def test_the_catalogue_knows_which_parameters_are_text(cli: Cli) -> None:
    app = Headway(f"sqlite:///{cli.folder}/headway.db")

    @app.task(name="shop.build_report")
    def build_report(month: str) -> None: ...

    async def publish() -> None:
        store = open_store(f"sqlite:///{cli.folder}/headway.db")
        await store.open()
        await publish_tasks(
            store,
            [
                TaskEntry(
                    name="shop.build_report",
                    lane="medium",
                    executor="thread",
                    parameters=build_report.signature.schema(),
                )
            ],
        )
        await store.close()

    asyncio.run(publish())
    cli.call("submit", "shop.build_report", "month=true")
    assert arguments(cli) == {"month": "true"}


TEXT = {"type": "string"}
MAYBE = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}


@pytest.mark.parametrize(
    "schema, text, value",
    [
        pytest.param(TEXT, "2026", "2026", id="number"),
        pytest.param(TEXT, "null", "null", id="null"),
        pytest.param(TEXT, '"quoted"', "quoted", id="quoted"),
        pytest.param(TEXT, '"open', '"open', id="half quoted"),
        pytest.param(TEXT, "", "", id="empty"),
        pytest.param({"type": "string", "format": "date"}, "2026", "2026", id="date"),
        pytest.param(MAYBE, "12", "12", id="text or null"),
        pytest.param(MAYBE, "null", None, id="null where it may be"),
        pytest.param({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12, id="text or number"),
        pytest.param({"type": "integer"}, "12", 12, id="number wanted"),
        pytest.param({}, "12", 12, id="anything"),
    ],
)
def test_a_value_is_read_by_the_schema_of_its_parameter(schema: dict[str, Any], text: str, value: Any) -> None:
    assert fit_texts({"it": text}, {"it": schema}) == {"it": value}
