"""Searches over HTTP: a page is bounded and says how far it searched. Secrets are neither shown nor searched."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headway import Headway
from headway.observability.redaction import HIDDEN
from headway.server import pages
from headway.server.api import headway_api
from headway.stores import searching
from tests.server.conftest import client_for

TASKS = "/api/v1/tasks"


async def submit(http: httpx.AsyncClient, *parameters: dict[str, Any], task: str = "any") -> None:
    tasks = [{"task_type": task, "parameters": one} for one in parameters]
    (await http.post(f"{TASKS}/bulk", json=tasks)).raise_for_status()


async def search(http: httpx.AsyncClient, q: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(TASKS, params={"q": q, **more})).raise_for_status().json()
    return found


async def test_a_page_ends_after_the_tasks_that_it_may_read(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "READ_MAX", 8)
    monkeypatch.setattr(searching, "FIRST_IDS", 4)
    monkeypatch.setattr(searching, "MORE_IDS", 6)
    await submit(http, *({"number": number} for number in range(20)))
    looked, cursor = list[int](), None
    while cursor is not None or not looked:
        page = await search(http, "why:limit", **({} if cursor is None else {"cursor": cursor}))
        assert page["items"] == []
        looked.append(page["searched"])
        cursor = page["next_cursor"]
    assert looked == [8, 8, 4]
    page = await search(http, "why:no_worker", limit=5)
    assert [task["payload"]["parameters"]["number"] for task in page["items"]] == [19, 18, 17, 16, 15]
    assert page["searched"] == 5


async def test_a_store_that_looks_for_words_passes_more_tasks_in_a_page(
    app: Headway, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "READ_MAX", 8)
    monkeypatch.setattr(pages, "LOOKED_MAX", 16)
    monkeypatch.setattr(searching, "FIRST_IDS", 4)
    monkeypatch.setattr(searching, "MORE_IDS", 6)
    await submit(http, *({"name": f"Number {number}."} for number in range(20)))
    passed = 16 if (await app.client.store()).abilities.match_words is not None else 8
    page = await search(http, '"number 3."')
    assert (page["items"], page["searched"]) == ([], passed)
    found = []
    while page["next_cursor"] is not None:
        page = await search(http, '"number 3."', cursor=page["next_cursor"])
        found += [task["payload"]["parameters"]["name"] for task in page["items"]]
    assert found == ["Number 3."]


@pytest.fixture
def secretive(app: Headway) -> Headway:
    @app.task(name="pay", redact=["iban"])
    async def pay(iban: str, password: str, note: str) -> None: ...

    return app


async def test_secrets_are_shown_to_programs_and_hidden_in_the_dashboard(secretive: Headway) -> None:
    given = {"iban": "DE99", "password": "hunter2", "note": "rent", "big": 12345678901234567890}
    async with client_for(headway_api(secretive, hosts=["testserver"])) as http:
        await submit(http, given, task="elsewhere")
        await submit(http, {name: given[name] for name in ("iban", "password", "note")}, task="pay")
        (pay,) = (await search(http, "task:pay"))["items"]
        assert pay["payload"]["parameters"] == {"iban": "DE99", "password": "hunter2", "note": "rent"}
        (pay,) = (await search(http, "task:pay", redact=True))["items"]
        hidden = {"iban": HIDDEN, "password": HIDDEN, "note": "rent"}
        assert pay["payload"]["parameters"] == hidden
        for address, query in (
            (TASKS, {"task_type": "pay"}),
            (TASKS, {"task_id": pay["task_id"]}),
            (f"{TASKS}/{pay['task_id']}", {}),
        ):
            answer = (await http.get(address, params={**query, "redact": True})).raise_for_status().json()
            shown = answer["items"][0] if "items" in answer else answer
            assert shown["payload"]["parameters"] == hidden
        (other,) = (await search(http, "task:elsewhere", redact=True))["items"]
        assert other["payload"]["parameters"] == {**given, "password": HIDDEN}


@pytest.mark.parametrize("word, found", [("rent", 1), ("hunter2", 0), ("hunter", 0), ("DE99", 0), ("password", 1)])
async def test_searches_and_bulk_actions_do_not_look_into_secrets(secretive: Headway, word: str, found: int) -> None:
    """Otherwise a reader could guess a hidden value one letter at a time."""
    async with client_for(headway_api(secretive, hosts=["testserver"])) as http:
        await submit(http, {"iban": "DE99", "password": "hunter2", "note": "rent"}, task="pay")
        assert len((await search(http, word))["items"]) == found
        asked = {"action": "cancel", "filter": word, "dry_run": True}
        answer = (await http.post("/api/v1/bulk", json=asked)).raise_for_status().json()
        assert answer["count"] == found
