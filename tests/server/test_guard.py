"""The guard: requests that it refuses before anything reads them, and headers that every reply has."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import ConfigError
from headway.security.binding import check_bind
from headway.server.guard import BODY_MAX, BULK_MAX, CSP, too_deep
from tests.server.guarded_app import GuardedApp

UNSAFE = ["POST", "PUT", "PATCH", "DELETE"]
JSON = ("content-type", "application/json")


@pytest.fixture
def guarded_app() -> GuardedApp:
    return GuardedApp()


# ---------------------------------------------------------------------- without tokens


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"],
)
async def test_an_open_server_answers_to_names_of_this_machine(guarded_app: GuardedApp, host: str) -> None:
    # S-9
    assert (await guarded_app.ask("GET", "/read", host=host)).status == 200
    assert (await guarded_app.connect("/api/v1/interactive", host=host)).status == 101


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:80@localhost",
        "localhost:80x",
        "localhost:8000:evil",
        "192.0.2.1",
        "0.0.0.0",
        "::1",
        "testserver",
        "",
        None,
    ],
)
async def test_an_open_server_answers_to_no_other_name(guarded_app: GuardedApp, host: str | None) -> None:
    # S-9
    for method in ["GET", "OPTIONS", *UNSAFE]:
        answer = await guarded_app.ask(method, "/public", host=host)
        assert (answer.status, answer.code) == (421, "wrong_host")
    assert (await guarded_app.connect("/api/v1/interactive", host=host)).status == 421
    assert guarded_app.seen == []


async def test_an_open_server_may_be_given_further_names() -> None:
    guarded_app = GuardedApp(hosts=["testserver"])
    assert (await guarded_app.ask("GET", "/read", host="testserver", client=("testclient", 1))).status == 200


@pytest.mark.parametrize(
    "name",
    [
        "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Prefix", "X-Real-IP",
        "Via", "CF-Connecting-IP", "CF-Connecting-IPv6", "True-Client-IP", "X-Client-IP", "X-Original-Forwarded-For",
        "X-Cluster-Client-IP", "Fastly-Client-IP", "Fly-Client-IP", "X-Azure-ClientIP", "X-Envoy-External-Address",
        "X-AppEngine-User-IP", "Forwarded-For", "CDN-Loop", "X-Original-URL", "Client-IP",
    ],
)  # fmt: skip
async def test_an_open_server_takes_nothing_from_a_proxy(guarded_app: GuardedApp, name: str) -> None:
    # S-8
    for method in ["GET", *UNSAFE]:
        answer = await guarded_app.ask(method, "/public", [(name, "127.0.0.1")])
        assert (answer.status, answer.code) == (403, "forwarded")
    assert (await guarded_app.connect("/api/v1/interactive", [(name, "127.0.0.1")])).status == 403
    assert guarded_app.seen == []


@pytest.mark.parametrize("address", ["192.0.2.7", "172.17.0.1", "::ffff:192.0.2.7", "2001:db8::1"])
async def test_an_open_server_serves_no_other_machine(guarded_app: GuardedApp, address: str) -> None:
    # A published port of a container looks like this; so does a bind that Headway did not check.
    answer = await guarded_app.ask("GET", "/read", client=(address, 5))
    assert (answer.status, answer.code) == (403, "forbidden")
    assert (await guarded_app.connect("/api/v1/interactive", client=(address, 5))).status == 403


@pytest.mark.parametrize("client", [("127.0.0.1", 5), ("127.8.8.8", 5), ("::1", 5), ("::ffff:127.0.0.1", 5), None])
async def test_an_open_server_serves_this_machine(guarded_app: GuardedApp, client: tuple[str, int] | None) -> None:
    assert (await guarded_app.ask("GET", "/read", client=client)).status == 200


OWN = [
    [],
    [("sec-fetch-site", "same-origin")],
    [("sec-fetch-site", "none")],
    [("origin", "http://localhost:8000")],
    [("origin", "HTTP://LocalHost:8000"), ("sec-fetch-site", "same-origin")],
]
FOREIGN = [
    [("sec-fetch-site", "cross-site")],
    [("sec-fetch-site", "same-site")],
    [("sec-fetch-site", "nonsense")],
    [("origin", "null")],
    [("origin", "https://evil.example")],
    [("origin", "http://localhost:9000")],
    [("origin", "http://localhost")],
    [("origin", "http://localhost:8000.evil.example")],
    [("origin", "file://")],
    [("origin", "")],
    [("origin", "http://localhost:8000"), ("sec-fetch-site", "cross-site")],
]


@pytest.mark.parametrize("headers", OWN)
@pytest.mark.parametrize("method", UNSAFE)
async def test_pages_of_this_server_and_programs_may_change_things(
    guarded_app: GuardedApp, method: str, headers: list[tuple[str, str]]
) -> None:
    # S-10
    assert (await guarded_app.ask(method, "/submit", headers)).status == 200
    assert (await guarded_app.connect("/api/v1/interactive", headers)).status == 101


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method", UNSAFE)
async def test_pages_of_other_sites_may_not(
    guarded_app: GuardedApp, method: str, headers: list[tuple[str, str]]
) -> None:
    # S-10, S-17
    answer = await guarded_app.ask(method, "/submit", [*headers, JSON], b"{}")
    assert (answer.status, answer.code) == (403, "forbidden_origin")
    assert (await guarded_app.connect("/api/v1/interactive", headers)).status == 403
    assert guarded_app.seen == []


async def test_the_get_that_schedules_is_guarded_like_a_post(guarded_app: GuardedApp) -> None:
    # S-11
    for headers in FOREIGN:
        assert (await guarded_app.ask("GET", "/task", headers)).status == 403
        assert (await guarded_app.ask("GET", "/read", headers)).status == 200
    assert (await guarded_app.ask("GET", "/task")).status == 200


async def test_a_port_that_goes_without_saying_need_not_be_said(guarded_app: GuardedApp) -> None:
    for host, origin in (("localhost", "http://localhost:80"), ("localhost:80", "http://localhost")):
        assert (await guarded_app.ask("POST", "/submit", [("origin", origin)], host=host)).status == 200


async def test_other_origins_are_told_nothing_they_could_use(guarded_app: GuardedApp) -> None:
    # S-12
    asked = [("origin", "https://evil.example"), ("access-control-request-method", "POST")]
    answer = await guarded_app.ask("OPTIONS", "/submit", asked)
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]
    read = await guarded_app.ask("GET", "/read", [("origin", "https://evil.example")])
    assert not [name for name in read.headers if name.startswith("access-control")]
    assert read.headers["cross-origin-resource-policy"] == "same-origin"


async def test_health_is_told_though_the_store_is_away(
    guarded_app: GuardedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> list[Any]:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(guarded_app.store, "read", fail)
    assert (await guarded_app.ask("GET", "/healthz")).status == 200


# ---------------------------------------------------------------------- with tokens


@pytest.mark.parametrize("method", UNSAFE)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("cookie", "session=1; token=hw_x")],
        [("authorization", "Basic dTpw")],
        [("sec-fetch-site", "same-origin"), ("origin", "http://localhost:8000")],
    ],
)
async def test_nothing_that_a_browser_adds_by_itself_lets_a_change_through(
    guarded_app: GuardedApp, method: str, headers: list[tuple[str, str]]
) -> None:
    # S-10: not even on a route that forgot to ask for a scope.
    await guarded_app.token()
    answer = await guarded_app.ask(method, "/public", headers)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert guarded_app.seen == []


async def test_with_tokens_a_server_may_be_behind_a_proxy_and_have_any_name(guarded_app: GuardedApp) -> None:
    token = await guarded_app.token()
    headers = [("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=192.0.2.1"), ("sec-fetch-site", "cross-site")]
    for method in ["GET", *UNSAFE]:
        asked = guarded_app.ask(method, "/admin", headers, token=token, host="queue.example", client=("192.0.2.7", 5))
        assert (await asked).status == 200


async def test_a_websocket_is_refused_to_pages_of_other_sites_whatever_their_token() -> None:
    # S-17
    guarded_app = GuardedApp(origins=["https://Board.example"])
    token = await guarded_app.token()

    async def connect(*headers: tuple[str, str]) -> int:
        return (await guarded_app.connect("/api/v1/interactive", headers, token=token, host="queue.example")).status

    assert await connect() == 101
    assert await connect(("origin", "https://queue.example")) == 101
    assert await connect(("origin", "https://board.example")) == 101
    assert await connect(("origin", "https://evil.example")) == 403
    assert await connect(("origin", "null")) == 403


async def test_a_server_follows_tokens_that_are_made_while_it_refuses(guarded_app: GuardedApp) -> None:
    forwarded = [("x-forwarded-for", "192.0.2.1")]
    assert (await guarded_app.ask("GET", "/read", forwarded)).status == 403
    token = await guarded_app.token()
    assert (await guarded_app.ask("GET", "/read", forwarded, token=token)).status == 200


# ---------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "chunked, chunked", "gzip", "identity", "xchunked", "chunked,", ""]
)
@pytest.mark.parametrize("guarded", [True, False])
async def test_no_transfer_coding_but_chunked_is_taken(guarded_app: GuardedApp, coding: str, guarded: bool) -> None:
    # S-18, S-21: what a proxy took for the body might be something else.
    token = None if guarded else await guarded_app.token()
    headers = [("content-type", "application/json"), ("transfer-encoding", coding)]
    answer = await guarded_app.ask("POST", "/submit", headers, b"{}", token=token)
    assert (answer.status, answer.code) == (400, "malformed")
    assert answer.headers["connection"] == "close"
    assert (await guarded_app.ask("GET", "/read", headers[1:], token=token)).status == 400
    assert guarded_app.seen == []
    for good in ("chunked", "Chunked", " chunked "):
        headers = [("content-type", "application/json"), ("transfer-encoding", good)]
        assert (await guarded_app.ask("POST", "/submit", headers, b"{}", token=token)).status == 200


@pytest.mark.parametrize("method", UNSAFE)
@pytest.mark.parametrize(
    "content_type, status",
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("text/plain; application/json", 415),
        ("application/jsonp", 415),
        ("application/problem+json", 415),
        ("", 415),
        (None, 415),
    ],
)
@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_must_be_json(
    guarded_app: GuardedApp, method: str, content_type: str | None, status: int, declared: bool
) -> None:
    # S-10; also if neither its length nor its coming was told.
    headers = [] if content_type is None else [("content-type", content_type)]
    headers += [("content-length", "2")] if declared else []
    answer = await guarded_app.ask(method, "/submit", headers, b"{}")
    assert answer.status == status
    assert (guarded_app.seen == []) == (status == 415)


async def test_no_body_needs_no_type(guarded_app: GuardedApp) -> None:
    for headers in ([], [("content-length", "0")], [("content-type", "text/plain"), ("content-length", "0")]):
        assert (await guarded_app.ask("POST", "/submit", headers)).status == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "x-gzip", "identity, gzip"])
async def test_a_body_must_not_be_compressed(guarded_app: GuardedApp, coding: str) -> None:
    # S-18
    headers = [JSON, ("content-length", "2"), ("content-encoding", coding)]
    answer = await guarded_app.ask("POST", "/submit", headers, b"{}")
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    plain = [JSON, ("content-length", "2"), ("content-encoding", "identity")]
    assert (await guarded_app.ask("POST", "/submit", plain, b"{}")).status == 200


@pytest.mark.parametrize("path, most", [("/submit", BODY_MAX), ("/api/v1/tasks/bulk", BULK_MAX), ("/parsed", BODY_MAX)])
async def test_a_body_is_bounded_while_it_is_read(guarded_app: GuardedApp, path: str, most: int) -> None:
    # J2, S-18
    declared = await guarded_app.ask("POST", path, [JSON, ("content-length", str(most + 1))])
    assert (declared.status, declared.code, declared.json["most"]) == (413, "too_large", most)
    assert declared.headers["connection"] == "close"
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1 << 16
        return {"type": "http.request", "body": b" " * (1 << 16), "more_body": True}

    endless = await guarded_app.ask_slowly("POST", path, [JSON, ("transfer-encoding", "chunked")], receive)
    assert (endless.status, endless.code) == (413, "too_large")
    assert read <= most + (1 << 16)
    assert guarded_app.seen == []
    if path != "/parsed":
        whole = [JSON, ("content-length", str(most))]
        assert (await guarded_app.ask("POST", path, whole, [b" " * 1_000, b" " * (most - 1_000)])).status == 200


async def test_a_body_that_was_read_within_bounds_is_passed_on_as_it_is(guarded_app: GuardedApp) -> None:
    parts = [b'{"a": ', b"[1, 2", b"]}"]
    assert (await guarded_app.ask("POST", "/parsed", [JSON], parts)).json == {"a": [1, 2]}
    assert (await guarded_app.ask("POST", "/parsed", [JSON], b"{")).status == 400  # The application's own word stands.


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    # S-21
    guarded_app = GuardedApp(body_seconds=0.05)
    came = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> dict[str, Any]:
        if came:
            return came.pop()
        await asyncio.Event().wait()
        raise AssertionError

    answer = await guarded_app.ask_slowly("POST", "/parsed", [JSON, ("content-length", "9")], receive)
    assert (answer.status, answer.code) == (400, "malformed")
    assert answer.headers["connection"] == "close"
    assert "in time" in answer.json["detail"]


async def test_a_caller_that_gives_up_is_not_taken_for_a_slow_one() -> None:
    guarded_app = GuardedApp(body_seconds=60)
    waits = asyncio.Event()

    async def receive() -> dict[str, Any]:
        waits.set()
        await asyncio.Event().wait()
        raise AssertionError

    asked = asyncio.create_task(guarded_app.ask_slowly("POST", "/submit", [JSON, ("content-length", "9")], receive))
    await waits.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("x", "y")] * 200, id="200 headers"),
        pytest.param([("host", "localhost")], id="two hosts"),
        pytest.param([JSON, JSON], id="two types"),
        pytest.param([("content-length", "1"), ("content-length", "2")], id="two lengths"),
        pytest.param([("origin", "http://localhost:8000"), ("origin", "https://evil.example")], id="two origins"),
        pytest.param([JSON, ("content-length", "two")], id="no length"),
        pytest.param([JSON, ("content-length", "-1")], id="negative length"),
    ],
)
async def test_odd_requests_are_refused(guarded_app: GuardedApp, headers: list[tuple[str, str]]) -> None:
    # S-21
    answer = await guarded_app.ask("POST", "/submit", headers)
    assert (answer.status, answer.code) == (400, "malformed")
    assert guarded_app.seen == []


async def test_a_length_beyond_all_numbers_is_too_large(guarded_app: GuardedApp) -> None:
    assert (await guarded_app.ask("POST", "/submit", [JSON, ("content-length", "9" * 5_000)])).status == 413


@pytest.mark.parametrize(
    "body, deep",
    [
        pytest.param("[" * 64 + "]" * 64, False, id="as deep as may be"),
        pytest.param("[" * 65 + "]" * 65, True, id="one deeper"),
        pytest.param('{"a":' * 64 + "1" + "}" * 64, False, id="objects as deep as may be"),
        pytest.param('{"a":[' * 33 + "1" + "]}" * 33, True, id="mixed"),
        pytest.param("[" * 1_000_000, True, id="never closed"),
        pytest.param(json.dumps(["[" * 1_000, '"[' * 1_000, "\\[" * 1_000]), False, id="brackets in strings"),
        pytest.param("[" + "[],{}," * 100_000 + "[]]", False, id="wide"),
        pytest.param('["' + '\\"' * 1_000_000, False, id="a string that never ends"),
        pytest.param('["' + "[" * 1_000 + "\\", False, id="an escape of nothing"),
        pytest.param("]" * 1_000 + "[" * 1_000, False, id="no JSON at all"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_json_that_nests_too_deep_is_found_in_no_time(body: str, deep: bool) -> None:
    # J3
    began = time.monotonic()
    assert too_deep(body.encode()) == deep
    assert time.monotonic() - began < 5


# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    "method, path, headers, status",
    [
        ("GET", "/read", [], 200),
        ("GET", "/stream", [], 200),
        ("GET", "/nowhere", [], 404),
        ("TRACE", "/read", [], 405),
        ("GET", "/bug", [], 500),
        ("GET", "/read", [("x-forwarded-for", "x")], 403),
        ("POST", "/submit", [("content-length", "2")], 415),
        ("POST", "/submit", [JSON, ("content-length", "99999999")], 413),
        ("GET", "/read", [("authorization", "Bearer x")], 401),
    ],
)
async def test_every_answer_carries_the_security_headers(
    guarded_app: GuardedApp, method: str, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    # S-13
    answer = await guarded_app.ask(method, path, headers)
    assert answer.status == status
    assert {name: answer.headers.get(name) for name in EXPECTED} == EXPECTED
    assert "server" not in answer.headers
    assert b"secret of the house" not in answer.body


EXPECTED = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def test_the_content_security_policy_is_the_one_that_was_promised() -> None:
    # S-13
    assert CSP == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )


async def test_a_refused_websocket_carries_them_too_where_the_server_can_say_so(guarded_app: GuardedApp) -> None:
    answer = await guarded_app.connect("/api/v1/interactive", host="evil.example")
    assert (answer.status, answer.headers["content-security-policy"]) == (421, CSP)
    closed = await guarded_app.connect("/api/v1/interactive", host="evil.example", denial=False)
    assert (closed.status, closed.code) == (0, "wrong_host")


# ---------------------------------------------------------------------- where to listen


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1", "unix:/run/hw.sock"],
)
def test_a_server_may_listen_here_without_tokens(host: str) -> None:
    # S-7
    check_bind(host, has_tokens=False)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "[::]", "", "192.168.1.7", "::ffff:0.0.0.0", "queue.example", "localhost.evil.example", "0"],
)
def test_a_server_listens_elsewhere_only_with_tokens(host: str) -> None:
    # S-7
    with pytest.raises(ConfigError, match="headway token create"):
        check_bind(host, has_tokens=False)
    check_bind(host, has_tokens=True)


def test_a_socket_that_is_bound_already_is_looked_at(tmp_path: Path) -> None:
    # S-7
    with socket.socket() as here, socket.socket() as everywhere, socket.socket(socket.AF_UNIX) as unix:
        here.bind(("127.0.0.1", 0))
        everywhere.bind(("0.0.0.0", 0))
        unix.bind(str(tmp_path / "socket"))
        check_bind(here, has_tokens=False)
        check_bind(unix, has_tokens=False)
        with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
            check_bind(everywhere, has_tokens=False)
