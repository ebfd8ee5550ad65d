"""Requests that a browser sends by itself: no cookie is set, nothing redirects, no page loads from other sites."""

from __future__ import annotations

import re

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.security.tokens import create_token
from tests.server.test_scopes import MATRIX

pytestmark = pytest.mark.parametrize("store_name", ["memory"])

EVIL = ["//evil.example", "/\\evil.example", "https:evil.example", "%0d%0aset-cookie:%20a=b", "//evil.example/%2e%2e"]


def paths() -> list[tuple[str, str]]:
    """Return every request of the service, without sockets and streams."""
    found = [route.split() for route in MATRIX]
    return [
        (method, re.sub(r"\{\w+\}", "0", path))
        for method, path in found
        if method != "WS" and not path.endswith(("/events", "/poll", "/live"))
    ]


@pytest.mark.parametrize("with_token", [False, True])
async def test_no_route_sets_a_cookie_or_redirects(http: httpx.AsyncClient, app: Headway, with_token: bool) -> None:
    # S-15, S-16
    headers = {"content-type": "application/json"}
    if with_token:
        headers["authorization"] = f"Bearer {(await create_token(await app.client.store(), ['admin'], now_at=1))[1]}"
    known = paths()
    assert len(known) > 30
    for method, path in known:
        for more in ("", "/", "?next=//evil.example&url=https://evil.example&redirect=/\\evil.example"):
            answer = await http.request(method, path + more, content=b"{}", headers=headers)
            if path != "/api/v1/session":  # Signing in and out is what sets a cookie.
                assert "set-cookie" not in answer.headers, (method, path + more)
            assert not answer.is_redirect, (method, path + more)
            assert "location" not in answer.headers or answer.headers["location"].startswith("/api/v1/"), path + more


@pytest.mark.parametrize("path", EVIL)
async def test_a_path_that_looks_like_another_host_leads_nowhere(http: httpx.AsyncClient, path: str) -> None:
    # S-16
    request = http.build_request("GET", "http://testserver/")
    request.url = request.url.copy_with(raw_path=b"/" + path.lstrip("/").encode() if path[0] != "/" else path.encode())
    answer = await http.send(request)
    assert answer.status_code in (400, 403, 404, 405, 421)
    assert "location" not in answer.headers
    assert "set-cookie" not in answer.headers


async def test_pages_load_nothing_from_elsewhere_and_run_no_script(http: httpx.AsyncClient, api: FastAPI) -> None:
    # S-38: they work without a network.
    pages = 0
    for method, path in paths():
        if method != "GET":
            continue
        answer = await http.get(path)
        kind = answer.headers.get("content-type", "")
        if kind.startswith("text/html"):
            pages += 1
            assert "<script" not in answer.text.lower()
            loaded = re.findall(
                r"""<(?:link|img|iframe|object|embed|form|base)[^>]*?(?:href|src|data|action)=["']?([^"'\s>]+)""",
                answer.text,
            )
            assert [url for url in loaded if re.match(r"(?i)([a-z]+:)?//", url)] == []
        elif kind.startswith("text/css"):
            pages += 1
            assert not re.search(r"(?i)@import|url\(", answer.text)
    assert pages >= 2
