"""Browser sessions: a cookie stands for a token, ends with it, and is valid only on pages of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.security import browser_sessions
from headway.security.browser_sessions import BROWSER_SESSIONS
from headway.security.tokens import create_token, revoke_token
from headway.stores.base import Store
from tests.server.conftest import client_for
from tests.server.guarded_app import call

SESSION = "/api/v1/session"
TASKS = "/api/v1/tasks"
PAGE = {"sec-fetch-site": "same-origin", "origin": "http://testserver"}

pytestmark = pytest.mark.parametrize("store_name", ["memory", "sqlite", "redis", "postgres"])


@pytest.fixture
async def store(app: Headway, api: FastAPI) -> Store:
    service = api.state.service
    service.tokens.every = 0.0  # Tokens and sessions are read anew at every request.
    service.browsers.every = 0.0
    return await app.client.store()


@pytest.fixture
async def browser(api: FastAPI, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client that keeps cookies and sends the headers of a browser on a page of the server."""
    async with client_for(api, headers=PAGE) as client:
        yield client


async def token(store: Store, *scopes: str, tenant: str | None = None) -> tuple[str, str]:
    made, text = await create_token(store, scopes or ["admin"], tenant=tenant, now_at=1)
    return made.token_id, text


async def test_a_cookie_stands_for_a_token_until_the_browser_signs_out(
    browser: httpx.AsyncClient, store: Store
) -> None:
    token_id, text = await token(store, "read", "submit", tenant="acme")
    assert (await browser.get(TASKS)).status_code == 401
    told = (await browser.get(SESSION)).json()
    assert (told["signed_in"], told["scopes"], told["open"]) == (False, [], False)

    answer = await browser.post(SESSION, json={"token": text})
    assert answer.status_code == 201, answer.text
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("headway=hws_")
    assert {part.strip().lower() for part in cookie.split(";")[1:]} == {
        "httponly",
        "max-age=43200",
        "path=/",
        "samesite=strict",
    }
    assert text not in answer.text + cookie
    told = (await browser.get(SESSION)).json()
    assert (told["signed_in"], told["token_id"], told["tenant"]) == (True, token_id, "acme")
    assert told["scopes"] == ["read", "submit"]
    assert told["expires_at"] is not None
    assert (await browser.get(TASKS)).status_code == 200
    made = await browser.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}})
    assert (made.status_code, (await browser.get(f"{TASKS}/{made.json()['task_id']}")).json()["tenant"]) == (
        201,
        "acme",
    )
    assert (await browser.get("/api/v1/audit")).status_code == 403

    stolen = browser.cookies["headway"]
    assert (await browser.delete(SESSION)).json()["signed_in"] is False
    assert "headway" not in browser.cookies
    browser.cookies.set("headway", stolen)
    assert (await browser.get(TASKS)).status_code == 401  # The session has ended in the store.
    assert await store.read(BROWSER_SESSIONS) == []


async def test_revoking_the_token_ends_its_sessions(browser: httpx.AsyncClient, store: Store) -> None:
    await token(store)
    token_id, text = await token(store, "read")
    await browser.post(SESSION, json={"token": text})
    assert (await browser.get(TASKS)).status_code == 200
    await revoke_token(store, token_id, now_at=2)
    assert (await browser.get(TASKS)).status_code == 401
    assert (await browser.get(SESSION)).json()["signed_in"] is False


async def test_a_wrong_token_signs_nobody_in(browser: httpx.AsyncClient, store: Store) -> None:
    _, text = await token(store)
    for wrong in (text[:-1] + ("A" if text[-1] != "A" else "B"), "hw_0123456789_x", "nothing"):
        answer = await browser.post(SESSION, json={"token": wrong})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert "set-cookie" not in answer.headers
        assert wrong not in answer.text


@pytest.mark.parametrize(
    "headers, code",
    [
        ({"sec-fetch-site": "cross-site", "origin": "http://testserver"}, "forbidden_origin"),
        ({"sec-fetch-site": "same-site", "origin": "http://testserver"}, "forbidden_origin"),
        ({"sec-fetch-site": "none"}, "forbidden_origin"),
        ({"origin": "https://evil.example"}, "forbidden_origin"),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, "forbidden_origin"),
        ({"origin": "null"}, "forbidden_origin"),
        ({}, "forbidden_origin"),
    ],
)
async def test_a_request_of_another_site_changes_nothing(
    api: FastAPI, browser: httpx.AsyncClient, store: Store, headers: dict[str, str], code: str
) -> None:
    # A browser sends no cookie with SameSite=Strict there. This is the second line.
    _, text = await token(store)
    await browser.post(SESSION, json={"token": text})
    async with client_for(api, headers=headers, cookies=dict(browser.cookies)) as foreign:
        for method, path, body in (
            ("POST", TASKS, {"task_type": "add", "parameters": {"a": 1}}),
            ("POST", "/api/v1/bulk", {"action": "cancel", "filter": "state:queued"}),
            ("PUT", "/api/v1/policy", {}),
            ("POST", "/api/v1/pause", {}),
            ("POST", SESSION, {"token": text}),
            ("DELETE", SESSION, None),
        ):
            answer = await foreign.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, code), (method, path)
    assert (await store.stats()).totals.get("submitted", 0) == 0
    assert (await browser.get(TASKS)).status_code == 200


async def test_a_page_of_another_site_reads_nothing_with_the_cookie(
    api: FastAPI, browser: httpx.AsyncClient, store: Store
) -> None:
    _, text = await token(store)
    await browser.post(SESSION, json={"token": text})
    async with client_for(api, headers={"sec-fetch-site": "cross-site"}, cookies=dict(browser.cookies)) as foreign:
        assert (await foreign.get(TASKS)).status_code == 401
    async with client_for(api, headers={"sec-fetch-site": "none"}, cookies=dict(browser.cookies)) as typed:
        assert (await typed.get(TASKS)).status_code == 200  # The address was typed into the bar.


async def test_over_tls_the_cookie_is_bound_to_its_host(api: FastAPI, store: Store) -> None:
    _, text = await token(store)
    async with client_for(api, base_url="https://testserver", headers=PAGE | {"origin": "https://testserver"}) as http:
        answer = await http.post(SESSION, json={"token": text})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-headway=hws_")
        assert "Secure" in cookie
        assert (await http.get(TASKS)).status_code == 200


async def test_a_session_ends_after_twelve_hours(
    browser: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = await token(store)
    monkeypatch.setattr(browser_sessions, "SESSION_MS", -1)
    await browser.post(SESSION, json={"token": text})
    assert (await browser.get(TASKS)).status_code == 401
    monkeypatch.setattr(browser_sessions, "SESSION_MS", 12 * 3_600_000)
    monkeypatch.setattr(browser_sessions, "PRUNED_ONCE_IN", 1)
    await browser.post(SESSION, json={"token": text})
    assert (await browser.get(TASKS)).status_code == 200
    assert len(await store.read(BROWSER_SESSIONS)) == 1  # The expired one is gone.


async def test_a_header_goes_before_the_cookie(browser: httpx.AsyncClient, store: Store) -> None:
    _, admin = await token(store)
    _, reader = await token(store, "read")
    await browser.post(SESSION, json={"token": admin})
    assert (await browser.get("/api/v1/audit")).status_code == 200
    answer = await browser.get("/api/v1/audit", headers={"authorization": f"Bearer {reader}"})
    assert answer.status_code == 403


async def test_without_tokens_a_server_on_this_machine_is_open(api: FastAPI, browser: httpx.AsyncClient) -> None:
    told = (await browser.get(SESSION)).json()
    assert (told["signed_in"], told["open"], told["token_id"]) == (True, True, None)
    assert told["scopes"] == ["admin", "publish", "read", "submit", "worker"]
    assert (await call(api, "DELETE", SESSION)).status == 200


async def test_a_hostile_cookie_is_nobody(api: FastAPI, browser: httpx.AsyncClient, store: Store) -> None:
    await token(store)
    for text in ("", "hws_", "hws_" + "A" * 43, "é", "a=b=c", '"', "hws_" + "A" * 10_000):
        async with client_for(api, headers=[(b"cookie", b"headway=" + text.encode())]) as client:
            assert (await client.get(TASKS)).status_code == 401
