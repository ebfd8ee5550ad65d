"""Malformed requests by the thousand: each is refused with a documented code, and none changes anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.timestamps import write_moment
from headway.security.tickets import make_ticket
from headway.security.tokens import create_token, revoke_token
from headway.server import guard
from headway.server.api import headway_api
from headway.server.connection_limits import HttpProtocol
from headway.server.guard import BODY_MAX, Guard
from headway.server.pages import write_cursor
from headway.server.problems import PROBLEM_JSON, STATUSES, Problem
from headway.server.routing import read_json
from headway.server.uvicorn_server import bind
from headway.stores.base import JobQuery, Store
from tests.conftest import ADDRESSES
from tests.server.conftest import client_for, make_app
from tests.server.live import served
from tests.server.test_workers import register

T = TypeVar("T")

GATE = {"memory": 1_400, "sqlite": 300, "redis": 300}
PROOF = 10_000
SOON = 20.0  # Seconds; a busy machine takes its time.

API, TASKS, WORKERS = "/api/v1", "/api/v1/tasks", "/internal/workers"
# Refused before anybody knows which operation it would have been.
ANYWHERE = frozenset({400, 404, 405, 413, 415, 421})
# Kinds of documents that a refused request must not touch. Tickets, the audit and the use of tokens may change.
KINDS = (
    "policy", "policy_file", "rules", "task", "cron", "token", "http_worker", "http_beat", "http_stop", "instance",
)  # fmt: skip


@dataclass(frozen=True)
class MalformedRequest:
    """A request, byte by byte. ``why`` names its fault."""

    why: str
    method: str
    path: str
    query: bytes = b""
    body: bytes | Sequence[bytes] = b""
    token: str | None = None
    headers: Sequence[tuple[bytes, bytes]] = ()
    content_type: bytes | None = b"application/json"
    length: bool = True  # Whether the length of the body is told.
    template: str = ""  # The path as the schema knows it.


@dataclass
class PopulatedApp:
    """An application whose store holds something of each kind, and tokens of each kind."""

    api: FastAPI
    store: Store
    tokens: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)  # By state: a task in it.
    worker: str = ""
    fence: str = ""
    ticket: str = ""  # For the task that waits.


# ---------------------------------------------------------------------- what stands in the store


@pytest.fixture
async def place(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PopulatedApp]:
    monkeypatch.chdir(tmp_path)
    async with make_app(ADDRESSES[store_name](tmp_path)) as app:
        yield await furnish(app)


async def furnish(app: Headway) -> PopulatedApp:
    api = headway_api(app, hosts=["testserver"])
    store = await app.client.store()
    place = PopulatedApp(api, store)
    async with client_for(api) as http:
        http.headers["authorization"] = f"Bearer {await make_token(place, 'admin', ['admin'])}"
        for scope in ("submit", "read", "worker"):
            await make_token(place, scope, [scope])
        await make_token(place, "other worker", ["worker"])
        await make_token(place, "acme", ["submit", "read"], tenant="acme")
        await make_token(place, "acme admin", ["admin"], tenant="acme")
        revoked = await make_token(place, "revoked", ["admin"])
        await revoke_token(store, revoked.split("_")[1], now_at=2)
        api.state.service.tokens.every = 0.01
        await api.state.service.tokens.refresh()
        # This process makes itself a name by it.
        await http.post("/task", json={"task_type": "first", "idempotency_key": "known"})
        await http.delete(f"{TASKS}/{(await http.get(TASKS)).json()['items'][0]['task_id']}")
        http.headers["authorization"] = f"Bearer {place.tokens['worker']}"
        worker = await register(http, "cpu", capacity=9, reserved=0)
        place.worker = worker.worker_id
        http.headers["authorization"] = f"Bearer {place.tokens['admin']}"
        for state in ("completed", "failed", "dead_letter", "executing"):
            body = {"task_type": "odd", "parameters": {"n": 1}, "max_retries": 0, "tenant": "acme"}
            place.tasks[state] = (await http.post(TASKS, json=body)).json()["task_id"]
            http.headers["authorization"] = f"Bearer {place.tokens['worker']}"
            [given] = (await worker.poll(1))["tasks"]
            place.fence = given["fence"]
            if state != "executing":
                error = {"message": "no", "retriable": state != "failed"}
                told = {"status": "completed", "result": 1} if state == "completed" else {"status": "failed"}
                await worker.say("result", task_id=given["task_id"], fence=given["fence"], error=error, **told)
            http.headers["authorization"] = f"Bearer {place.tokens['admin']}"
        waiting = {"task_type": "odd", "required_capabilities": ["gpu"], "tenant": "other"}
        place.tasks["queued"] = (await http.post(TASKS, json=waiting)).json()["task_id"]
        for state, task_id in place.tasks.items():
            assert (await http.get(f"{TASKS}/{task_id}")).json()["status"] == state
    place.ticket, _ = await make_ticket(store, token_id=None, subject=f"{TASKS}/{place.tasks['queued']}")
    return place


async def make_token(place: PopulatedApp, name: str, scopes: Sequence[str], tenant: str | None = None) -> str:
    _, place.tokens[name] = await create_token(place.store, scopes, tenant=tenant, now_at=1)
    return place.tokens[name]


async def traces(place: PopulatedApp) -> list[Any]:
    """Return everything that a request could change."""
    store = place.store
    jobs = [replace(job, seen_at=0) for job in await store.find(JobQuery(limit=1_000))]
    stats = await store.stats()
    documents = [document for kind in KINDS for document in await store.read(kind)]
    leases = await store.leases(worker_id=place.worker)
    return [jobs, stats.workers, stats.totals, sorted(documents, key=lambda one: (one.kind, one.name)), leases]


# ---------------------------------------------------------------------- the generator


LONE = "\ud800"
TEXT: list[Any] = [5, 1.5, True, [], {}, "", "x" * 256, "a\0b", LONE]
NUMBER: list[Any] = ["5", [], {}, True, -1, -1e300, 1e308, float("nan"), float("inf"), 10**400, "NaN"]
WHOLE: list[Any] = [*NUMBER, 1.5, 1 << 70, -(1 << 70)]
FLAG: list[Any] = [0, 1, "true", "", [], {}, 1.0]
OBJECT: list[Any] = [5, "x", [], True, [["a", 1]], ""]
LIST: list[Any] = [5, "x", {}, True, [5], [None], [[]], [{}], 1.5]
NAMES: list[Any] = [*LIST, [""], ["a\0"], [LONE], ["x" * 300]]

# By operation: a body that would do, and what would not do in which member of it.
NEW_TASK: dict[str, Any] = {"task_type": "odd", "parameters": {"n": 1}}
NEW_TASK_ODD: dict[str, list[Any]] = {
    "task_type": [*TEXT, None],
    "parameters": [*OBJECT, None, {"a": LONE}, {"a": float("nan")}, {"a": float("-inf")}, {LONE: 1},
                   {"a": "x" * 1_048_577}],
    "priority": [*TEXT, "no such lane"],
    "required_capabilities": [*NAMES, ["a"] * 33],
    "timeout_seconds": [*NUMBER, 0],
    "max_retries": WHOLE,
    "idempotency_key": [*TEXT, "known"],
    "tenant": TEXT,
    "duration": [*TEXT, "no such rung"],
    "run_after": ["", "soon", [], {}, True, "2030-01-01", "2030-01-01T00:00:00", "10000-01-01T00:00:00Z", 1e300],
    "expires": [*NUMBER, 0],
    "trace_id": TEXT,
}  # fmt: skip
ENTRY = {"name": "t", "lane": "low", "executor": "async"}
CRON = {
    "task": "t", "expression": "* * * * *", "tz": "UTC", "catch_up": "last", "overlap": "allow", "lane": "low",
    "max_retries": 0, "timeout_ms": 1_000, "payload": "AXt9",
}  # fmt: skip
ODD_ENTRIES: list[dict[str, Any]] = [
    {"name": ""}, {"name": "*"}, {"name": "a\0"}, {"name": LONE}, {"name": 5}, {"name": "x" * 256}, {"lane": ""},
    {"lane": None}, {"executor": 5}, {"needs": "x"}, {"needs": [""]}, {"needs": ["a\0"]}, {"doc": LONE}, {"doc": 5},
    {"doc": "x" * 70_000}, {"max_retries": -1}, {"max_retries": 1 << 70}, {"timeout_ms": 0}, {"timeout_ms": -1},
    {"retry": ["fixed", -1, 1, 0]}, {"retry": ["fixed", 1, 1, 2]}, {"retry": 5}, {"retry": ["fixed", 1 << 62, 1, 0]},
    {"parameters": 5}, {"parameters": {"properties": 5}}, {"parameters": {"properties": {"a": 5}}},
    {"parameters": {"properties": {"": {}}}}, {"parameters": {"properties": {"a b": {}}}}, {"limits": [5]},
    {"limits": [{}]}, {"limits": [{"concurrency": -1}]}, {"limits": [{"concurrency": 1 << 62}]},
    {"limits": [{"concurrency": 1, "by": LONE}]}, {"persist": 1}, {"unique_by": 5},
]  # fmt: skip
ODD_CRONS: list[dict[str, Any]] = [
    {"task": "another"}, {"task": 5}, {"expression": ""}, {"expression": "* * * *"}, {"expression": "61 * * * *"},
    {"expression": "*" * 10_000}, {"tz": "Mars/Olympus"}, {"tz": ""}, {"tz": "../../etc/passwd"}, {"tz": "a\0"},
    {"tz": "A" * 5_000}, {"lane": ""}, {"lane": "a\0"}, {"lane": LONE}, {"lane": "x" * 2_000}, {"needs": ["a\0"]},
    {"tenant": "a\0"}, {"tenant": LONE}, {"unique_key": "a\0"}, {"limits": ["a\0"]}, {"rung": "a\0"},
    {"max_retries": -1}, {"max_retries": 1 << 62}, {"timeout_ms": 0}, {"timeout_ms": 1 << 62}, {"payload": "!"},
    {"payload": "AVtd"}, {"payload": "AXt"}, {"payload": "Ant9"}, {"payload": 5}, {"retry": ["fixed", -1, 1, 0]},
    {"retry": ["fixed", 1, 1 << 62, 0]}, {"retry": ["fixed", 1, 1, 7]},
]  # fmt: skip
REGISTER: dict[str, Any] = {"capabilities": ["cpu"], "capacity": 2}
REGISTER_ODD: dict[str, list[Any]] = {
    "capabilities": [*NAMES, None, ["task:x"], ["a"] * 101],
    "capacity": [*WHOLE, 0, 10_001],
    "name": TEXT,
    "pid": WHOLE,
    "version": [5, [], "x" * 256, "a\0"],
    "reserved": WHOLE,
    "protocol": [2, "1", [], 1.5],
    "tasks": [*LIST, [ENTRY] * 1_001, *([ENTRY | odd] for odd in ODD_ENTRIES)],
    "limits": [*OBJECT, {"t": {"x": {"concurrency": 1}}}, {"": {}}, {"t": {"": {}}}, {"t": {"x": 5}}],
    "crons": [*LIST, [CRON]],
    "heartbeat_seconds": [*NUMBER, 0, 90_000],
    "dead_after_seconds": [*NUMBER, 0, 1],
    "grace_seconds": [*NUMBER, 3_601],
}
RESULT_ODD: dict[str, list[Any]] = {
    "task_id": [*TEXT, None, "a/b", "ä", "x" * 65],
    "status": ["done", "", 5, None, [], {}, "executing", "COMPLETED"],
    "error": ["x", 5, [], {"message": 5}, {"unknown": 1}, {"retriable": 1}, {"type": "x" * 256}, {"traceback": 5}],
    "fence": ["0", "xyz", 5, "AB", "a" * 66, [], "ab cd", "00" * 16],
    "retry_after_seconds": NUMBER,
    "reason": [5, [], "x" * 256, "a\0"],
    "seconds": NUMBER,
    "result_error": [5, [], {}],
}
POLL_ODD: dict[str, list[Any]] = {
    "available_capacity": [*WHOLE, None, 10_001],
    "capabilities": [*NAMES, ["gpu"], ["task:x"], ["cpu", "never registered"]],
    "wait_seconds": [*NUMBER, 30.1, 31, 86_400],
    "claim_id": ["short", "x" * 65, "with space", "ümlauts!", 5, [], "a/b/c/d/e"],
    "takes_over": FLAG,
    "results": [*LIST, [{"task_id": "x"}], [{"task_id": "x", "status": "done"}]],
    "progress": [*LIST, [{"task_id": "x", "fraction": 2}], [{"task_id": "x", "fraction": 0.5, "note": "x" * 501}]],
    "below": WHOLE,
}
HEARTBEAT_ODD: dict[str, list[Any]] = {
    "current_load": [*WHOLE, None],
    "status": ["dead", "", 5, None, []],
    "tasks": [*LIST, [{"task_id": "x", "fence": 0}], [{"task_id": "x", "more": 1}], [{"task_id": "a\0"}]],
    "seq": WHOLE,
    "policy_version": WHOLE,
}
REPLAY_ODD: dict[str, list[Any]] = {
    "task_ids": [*NAMES, ["a"] * 1_001],
    "task_type": TEXT,
    "priority": TEXT,
    "tenant": TEXT,
    "all": FLAG,
}
POLICY_ODD: dict[str, list[Any]] = {
    "lanes": [*OBJECT, {}, {"a": {}}, {"a\0": {"level": 1}}, {LONE: {"level": 1}}, {"high": {"level": 10**30}},
              {"high": {"level": 1, "weight": float("nan")}}, {"high": {"level": 1, "weight": -1}}],
    "reserve": [*OBJECT, {"slots": -1}, {"slots": "50%"}, {"lanes": ["none such"]}, {"rule": "other"}],
    "ladder": [5, "x", [5], {"rungs": 5}],
    "limits": [*OBJECT, {"x": {"concurrency": 0}}, {"x": {"rate": "1e400/min"}}, {"x": {"concurrency": 1 << 70}}],
    "keep": [*OBJECT, {"completed": "1e9d"}, {"completed": -1}, {"unknown": 1}],
    "retry": [*OBJECT, {"backoff": "quadratic"}, {"jitter": 2}, {"base": float("inf")}],
    "tasks": [*OBJECT, {"t": {"timeout": float("inf")}}, {"t": {"unknown": 1}}, {"t": {"priority": "none such"}}],
    "max_depth": WHOLE,
    "crash_limit": WHOLE,
    "promotion": [5, "other", [], {}],
    "default_lane": [5, "none such", "", [], {}],
}  # fmt: skip
PAUSE_ODD = {"lane": TEXT, "task_type": TEXT, "tenant": TEXT}
SCHEDULE_ODD = {
    "priority": ["medium", "", 5, []],
    "task_type": [*TEXT, None],
    "parameters": [*OBJECT, None, {"a": LONE}],
    "idempotency_key": TEXT,
}


@dataclass(frozen=True)
class Operation:
    """An operation: its scope, a valid body, and values that are invalid for its members."""

    method: str
    path: str
    scope: str
    body: Any = None
    odd: dict[str, list[Any]] = field(default_factory=dict)
    needs_body: bool = True
    required: tuple[str, ...] = ()


ROUTES = [
    Operation("POST", TASKS, "submit", NEW_TASK, NEW_TASK_ODD, required=("task_type",)),
    Operation("POST", f"{TASKS}/bulk", "submit", [NEW_TASK], NEW_TASK_ODD, required=("task_type",)),
    Operation("POST", "/task", "submit", {}, SCHEDULE_ODD, needs_body=False),
    Operation("POST", f"{WORKERS}/register", "worker", REGISTER, REGISTER_ODD, required=("capabilities",)),
    Operation("POST", f"{WORKERS}/{{worker_id}}/poll", "worker", {"available_capacity": 0}, POLL_ODD,
          required=("available_capacity",)),
    Operation("POST", f"{WORKERS}/{{worker_id}}/result", "worker", {"task_id": "x", "status": "failed", "fence": "00"},
          RESULT_ODD, required=("task_id", "status")),
    Operation("POST", f"{WORKERS}/{{worker_id}}/heartbeat", "worker", {"current_load": 0, "status": "active"},
          HEARTBEAT_ODD),
    Operation("POST", f"{WORKERS}/{{worker_id}}/drain", "worker", {"leave": False}, {"leave": FLAG}, needs_body=False),
    Operation("POST", "/api/v1/dlq/replay", "admin", {"task_type": "none such"}, REPLAY_ODD),
    Operation("POST", "/api/v1/dlq/{task_id}/replay", "admin"),
    Operation("PUT", "/api/v1/policy", "admin", {"crash_limit": 3}, POLICY_ODD),
    Operation("POST", "/api/v1/pause", "admin", {"lane": "low"}, PAUSE_ODD),
    Operation("POST", "/api/v1/resume", "admin", {"lane": "low"}, PAUSE_ODD),
    Operation("POST", "/api/v1/workers/{worker_id}/drain", "admin"),
    Operation("DELETE", f"{TASKS}/{{task_id}}", "submit"),
    Operation("POST", f"{TASKS}/{{task_id}}/retry", "submit"),
    Operation("POST", f"{TASKS}/{{task_id}}/ticket", "read"),
    Operation("GET", f"{TASKS}/{{task_id}}", "read"),
    Operation("GET", f"{TASKS}/{{task_id}}/why", "read"),
    Operation("GET", f"{TASKS}/{{task_id}}/estimate", "read"),
    Operation("GET", f"{TASKS}/{{task_id}}/events", "read"),
    Operation("GET", "/task/{task_id}", "read"),
    Operation("GET", TASKS, "read"),
    Operation("GET", "/api/v1/dlq", "read"),
    Operation("GET", "/api/v1/queue/stats", "read"),
    Operation("GET", "/api/v1/policy", "read"),
    Operation("GET", "/api/v1/catalogue", "read"),
    Operation("GET", "/api/v1/workers", "read"),
    Operation("GET", "/api/v1/pauses", "read"),
    Operation("GET", "/metrics", "read"),
]  # fmt: skip
WITH_BODY = [route for route in ROUTES if route.body is not None]
WITH_ID = [route for route in ROUTES if "{" in route.path]
UNSAFE = [route for route in ROUTES if route.method != "GET"]

# As they come out of the address: what was encoded there is decoded.
ODD_IDS = [
    "a/b", "../../etc/passwd", "a\0b", "ä", "\u202e", "%00", "a b", "a.b", "x" * 65, "x" * 5_000, "'; DROP TABLE job",
    "{task_id}", "*", "\ufffd", "0" * 36, "01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10", "null", "-1", "..", "a;b", "a?b", "#",
]  # fmt: skip
ODD_QUERIES = {
    TASKS: [
        b"limit=0", b"limit=501", b"limit=x", b"limit=-1", b"limit=1e2", b"limit=", b"limit=99999999999999999999",
        b"status=lost", b"status=", b"status=queued&status=gone", b"age=nan", b"age=inf", b"age=-1", b"age=x",
        b"age_max=nan", b"age_max=1e400", b"cursor=%00", b"cursor=!!!", b"cursor=" + b"A" * 65, b"cursor=LTE",
        b"cursor=MWU5", b"cursor=%C3%A4", b"cursor=", b"tenant=", b"tenant=%00", b"worker=" + b"x" * 256,
        b"priority=", b"task_type=a%00b", b"&".join(b"x%d=1" % n for n in range(101)),
    ],
    "/api/v1/dlq": [b"limit=0", b"limit=x", b"cursor=zzzz", b"cursor=%ff", b"tenant=", b"task_type=%00"],
}  # fmt: skip
ODD_TYPES = [
    None, b"", b"text/plain", b"text/json", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x",
    b"application/jsonx", b"application/xml", b"*/*", b"json", b"application/ json", b"\xff\xfe",
    b"application/json" * 99,    b"application/problem+json", b"text/plain;application/json", b",application/json",
]  # fmt: skip
ODD_TEXTS = [
    b"{", b"}", b"[", b'{"a"', b'{"a":', b"{'a':1}", b"{a:1}", b'{"a":1,}', b"[1,]", b"// c\n{}", b"\xff\xfe{}", b"nul",
    b'{"a":"\xff"}', b'{"\xc3\x28":1}', b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"{}{}",
    b"{}x", "{}".encode("utf-32-le"), b"\0", b'{"a":\x01}', b'{"a":"\n"}', b'{"a":01}', b'{"a":+1}', b'{"a":.5}',
    b'{"a":0x1}', b'{"a":"\\x"}', b'{"a":"\\ud8"}', b'{"a":' + b"9" * 5_000 + b"}", b"--1", b"'", b"\x80",
    b"NaN2", b"tru", b'"',
]  # fmt: skip


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


class Generator:
    """A generator of malformed requests. The same seed produces the same requests."""

    def __init__(self, place: PopulatedApp, seed: int) -> None:
        self._place = place
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[MalformedRequest]:
        kinds = (
            [self.odd_member] * 10
            + [self.odd_body] * 3
            + [self.odd_id] * 3
            + [self.odd_token, self.odd_query, self.odd_type, self.odd_length, self.unknown_member, self.missing_member]
            + [
                self.twice,
                self.too_deep,
                self.odd_method,
                self.illegal,
                self.odd_worker,
                self.odd_header,
                self.stranger,
            ]
        )
        while True:
            yield self._random.choice(kinds)()

    # ------------------------------------------------------------------ parts

    def ask(self, why: str, route: Operation, **more: Any) -> MalformedRequest:
        place = self._place
        path = route.path.replace("{task_id}", place.tasks["executing"]).replace("{worker_id}", place.worker)
        body = b"" if route.body is None else written(route.body)
        query = b"dry_run=1" if route.path == "/api/v1/policy" else b""
        made = MalformedRequest(why, route.method, path, query, body, place.tokens[route.scope], template=route.path)
        return replace(made, **more)

    def pick(self, found: Sequence[T]) -> T:
        return self._random.choice(found)

    def with_members(self, route: Operation, members: dict[str, Any]) -> bytes:
        if isinstance(route.body, list):
            return written([*route.body * self._random.randrange(3), route.body[0] | members])
        return written(route.body | members)

    # ------------------------------------------------------------------ bodies

    def odd_member(self) -> MalformedRequest:
        route = self.pick(WITH_BODY)
        name = self.pick(list(route.odd))
        value = self.pick(route.odd[name])
        members = {name: value}
        if name == "crons" or (name == "tasks" and route.path.endswith("register") and self._random.random() < 0.3):
            members = {"tasks": [ENTRY], "crons": [CRON | self.pick(ODD_CRONS)]}
        return self.ask(f"{name}: {str(members)[:80]!r}", route, body=self.with_members(route, members))

    def unknown_member(self) -> MalformedRequest:
        route = self.pick(WITH_BODY)
        name = self.pick(
            ["", "x", "Task_Type", "__proto__", "constructor", "ä", "a\0", LONE, "x" * 5_000, "task_type "]
        )
        return self.ask("unknown member", route, body=self.with_members(route, {name: 1}))

    def missing_member(self) -> MalformedRequest:
        route = self.pick([route for route in WITH_BODY if route.required])
        gone = self.pick(route.required)
        body = route.body[0] if isinstance(route.body, list) else route.body
        left = {name: value for name, value in body.items() if name != gone}
        return self.ask(f"no {gone}", route, body=written([left] if isinstance(route.body, list) else left))

    def odd_body(self) -> MalformedRequest:
        route = self.pick(WITH_BODY)
        if self._random.random() < 0.3:
            wrong: list[Any] = [5, "x", True, 1.5, [[]], [None], "null", -0.0]
            wrong += [] if not route.needs_body else [None]
            wrong += [{}, []] if isinstance(route.body, list) else [[], [{}]]
            return self.ask("another type", route, body=written(self.pick(wrong)))
        if self._random.random() < 0.3:
            whole = written(route.body)
            return self.ask("cut off", route, body=whole[: self._random.randrange(1, len(whole))])
        if route.needs_body and self._random.random() < 0.1:
            return self.ask("nothing", route, body=b"", length=self.pick([True, False]))
        return self.ask("no JSON", route, body=self.pick(ODD_TEXTS))

    def twice(self) -> MalformedRequest:
        route = self.pick([route for route in WITH_BODY if route.body and isinstance(route.body, dict)])
        name, value = self.pick(list(route.body.items()))
        member = b"%s:%s" % (written(name), written(value))
        if route.path == TASKS and self._random.random() < 0.5:
            return self.ask("doubled deep down", route, body=b'{"task_type":"odd","parameters":{"a":[{"b":1,"b":1}]}}')
        return self.ask(f"{name} doubled", route, body=written(route.body)[:-1] + b"," + member + b"}")

    def too_deep(self) -> MalformedRequest:
        route = self.pick(WITH_BODY)
        deep = self.pick([65, 66, 100, 1_000, 20_000, 300_000])
        left, right = self.pick([(b"[", b"]"), (b'{"a":', b"}")])
        body = left * deep + self.pick([b"1", b"", b'"]"']) + right * self.pick([deep, 0, deep - 1])
        if self._random.random() < 0.3:
            body = b'{"task_type":"odd","parameters":{"a":' + body + b"}}"
        return self.ask("too deep", route, body=body)

    # ------------------------------------------------------------------ heads

    def odd_type(self) -> MalformedRequest:
        route = self.pick([route for route in WITH_BODY if written(route.body) != b"{}"])
        if self._random.random() < 0.5:
            return self.ask("content type", route, content_type=self.pick(ODD_TYPES))
        coding = self.pick([b"gzip", b"br", b"deflate", b"zstd", b"gzip, identity", b"x", b"", b"identity, identity"])
        return self.ask("content coding", route, headers=[(b"content-encoding", coding)])

    def odd_length(self) -> MalformedRequest:
        route = self.pick(UNSAFE)
        length = self.pick(
            [b"-1", b"x", b"1e3", b"", b"0x10", b"5 5", b"+5", b"99999999", b"9" * 30, b"5,5", b"\xb2", b"1.0"]
        )
        return self.ask("length", route, headers=[(b"content-length", length)], length=False)

    def odd_header(self) -> MalformedRequest:
        route = self.pick([route for route in ROUTES if route.path == TASKS and route.method == "POST"] * 2 + ROUTES)
        many = [(b"x-%d" % number, b"1") for number in range(100)]
        token = b"Bearer " + self._place.tokens["admin"].encode()
        odd: list[list[tuple[bytes, bytes]]] = [
            many,
            [(b"host", b"a"), (b"host", b"b")],
            [(b"authorization", token)],
            [(b"content-type", b"application/json")] * 2,
        ]
        if (route.method, route.path) == ("POST", TASKS):
            for name in (b"idempotency-key", b"traceparent"):
                odd += [[(name, b"")], [(name, b"x" * 256)]]
            odd += [[(b"idempotency-key", b"a\0")], [(b"idempotency-key", b"known")]]
        if route.path.endswith("/events"):
            odd += [[(b"last-event-id", b"x" * 101)]]
        return self.ask("header", route, headers=self.pick(odd))

    def odd_method(self) -> MalformedRequest:
        route = self.pick(ROUTES)
        taken = {one.method for one in ROUTES if one.path == route.path}
        taken |= {"HEAD"} if "GET" in taken else set()
        taken |= {"GET", "POST"} if route.path == "/task" else set()
        methods = {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get", "X" * 50}
        method = self.pick(sorted(methods - taken))
        body = b"{}" if method not in ("GET", "OPTIONS") else b""
        return self.ask("method", route, method=method, body=body, template="")

    def odd_query(self) -> MalformedRequest:
        if self._random.random() < 0.2:
            route, query = (
                self.pick(ROUTES),
                self.pick([b"token=x", b"access_token=a", b"API_KEY=1", b"a=hw_0123456789_x"]),
            )
            return self.ask("token in the address", route, query=query)
        if self._random.random() < 0.2:
            route = self.pick([route for route in ROUTES if route.path == "/api/v1/policy" and route.method == "PUT"])
            return self.ask(
                "query", route, query=self.pick([b"dry_run=maybe", b"dry_run=", b"dry_run=1&note=" + b"x" * 501])
            )
        path = self.pick(list(ODD_QUERIES))
        route = next(route for route in ROUTES if (route.method, route.path) == ("GET", path))
        return self.ask("query", route, query=self.pick(ODD_QUERIES[path]))

    # ------------------------------------------------------------------ who asks, and for what

    def odd_id(self) -> MalformedRequest:
        route = self.pick(WITH_ID)
        path = route.path
        for name in ("{task_id}", "{worker_id}"):
            path = path.replace(name, self.pick(ODD_IDS))
        return self.ask("id", route, path=path, template=route.path if path.count("/") == route.path.count("/") else "")

    def odd_token(self) -> MalformedRequest:
        route, tokens = self.pick(ROUTES), self._place.tokens
        good = tokens["admin"]
        token = self.pick(
            [None, "", "x", good[:-1], good + "x", good.upper(), f"hw_{'0' * 10}_{good[14:]}", tokens["revoked"],
             "hw__", "x" * 10_000, "ä", good[:14] + "A" * 43]
        )  # fmt: skip
        return self.ask("token", route, token=token)

    def stranger(self) -> MalformedRequest:
        """Return a request with a valid token of another scope."""
        place = self._place
        theirs = {
            "submit": ["read", "worker"],
            "read": ["submit", "worker"],
            "worker": ["read", "submit", "acme admin"],
        }
        if self._random.random() < 0.5:
            route = self.pick(ROUTES)
            wrong = theirs.get(route.scope, ["read", "submit", "worker"])
            return self.ask("scope", route, token=place.tokens[self.pick(wrong)])
        acme = {"token": place.tokens["acme"]}
        mine = f"{TASKS}/{place.tasks['queued']}"  # Of another tenant.
        get, post = Operation("GET", TASKS, "read"), Operation("POST", TASKS, "submit", NEW_TASK)
        wrong_ticket = self.pick([place.ticket, "hwt_" + "A" * 43, "", "hwt_", "x" * 200]).encode()
        events = Operation("GET", f"{TASKS}/{{task_id}}/events", "read")
        return self.pick(
            [
                self.ask("tenant", get, query=b"tenant=other", **acme),
                self.ask("tenant", post, body=written(NEW_TASK | {"tenant": "other"}), **acme),
                self.ask(
                    "tenant", replace(post, path=f"{TASKS}/bulk"), body=written([NEW_TASK | {"tenant": "x"}]), **acme
                ),
                self.ask("tenant", Operation("DELETE", f"{TASKS}/{{task_id}}", "submit"), path=mine, **acme),
                self.ask(
                    "tenant", Operation("POST", f"{TASKS}/{{task_id}}/retry", "submit"), path=f"{mine}/retry", **acme
                ),
                self.ask("tenant", replace(get, path=f"{TASKS}/{{task_id}}"), path=mine, **acme),
                self.ask("tenant", replace(get, path="/metrics"), **acme),
                self.ask("tenant", replace(get, path="/api/v1/workers"), **acme),
                self.ask("ticket", events, query=b"ticket=" + wrong_ticket, token=None),
                self.ask("ticket", get, query=b"ticket=" + wrong_ticket, token=None),
            ]
        )

    def illegal(self) -> MalformedRequest:
        place = self._place
        task = Operation("DELETE", f"{TASKS}/{{task_id}}", "submit")
        completed, failed = place.tasks["completed"], place.tasks["failed"]
        retry = Operation("POST", f"{TASKS}/{{task_id}}/retry", "submit")
        replay = Operation("POST", "/api/v1/dlq/{task_id}/replay", "admin")
        estimate = Operation("GET", f"{TASKS}/{{task_id}}/estimate", "read")
        big = Operation("POST", TASKS, "submit", NEW_TASK)
        return self.pick(
            [
                self.ask("cancel what has ended", task, path=f"{TASKS}/{self.pick([completed, failed])}"),
                self.ask("retry what is completed", retry, path=f"{TASKS}/{completed}/retry"),
                self.ask("replay what is no dead letter", replay, path=f"/api/v1/dlq/{failed}/replay"),
                self.ask("estimate of what has begun", estimate),
                self.ask("too large", big, body=[b" " * (1 << 16)] * (BODY_MAX // (1 << 16) + 1), length=False),
                self.ask("too large", big, headers=[(b"content-length", b"%d" % (BODY_MAX + 1))], length=False),
                self.ask("one odd task of many", replace(big, path=f"{TASKS}/bulk"),
                         body=written([NEW_TASK, NEW_TASK | {"priority": "none such"}])),
                self.ask("too many tasks", replace(big, path=f"{TASKS}/bulk"), body=written([NEW_TASK] * 1_001)),
            ]
        )  # fmt: skip

    def odd_worker(self) -> MalformedRequest:
        """Return a request with the worker, task or fence of another client."""
        place = self._place
        route = self.pick([route for route in WITH_BODY if "{worker_id}" in route.path])
        if self._random.random() < 0.3:
            return self.ask("spoofed", route, token=place.tokens["other worker"])
        if self._random.random() < 0.3:
            return self.ask("unknown", route, path=route.path.replace("{worker_id}", self.pick(["0" * 36, "a-b_c"])))
        route = next(route for route in WITH_BODY if route.path.endswith("/result"))
        fence = self.pick(["00" * 16, "ff" * 16, "ab", place.fence[:-2], place.fence + "00"])
        known = self.pick([place.tasks["executing"], place.tasks["queued"]])
        odd = [
            {"task_id": known, "status": "completed", "result": 1, "fence": fence},
            {"task_id": place.tasks["queued"], "status": "completed", "fence": place.fence},
            {"task_id": place.tasks["queued"], "status": self.pick(["failed", "released", "cancelled"])},
            {"task_id": place.tasks["completed"], "status": "failed", "error": {"message": "x", "retriable": False}},
            {"task_id": place.tasks["failed"], "status": "completed", "result": 2},
            {"task_id": "01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10", "status": "completed"},
        ]
        return self.ask("fence", route, body=written(self.pick(odd)))


# ---------------------------------------------------------------------- sending and judging


async def send(
    api: FastAPI, ask: MalformedRequest, host: bytes | None = b"testserver"
) -> tuple[int, dict[str, str], bytes]:
    """Call the application with exactly these bytes."""
    parts = [ask.body] if isinstance(ask.body, bytes) else list(ask.body)
    headers = [*([] if host is None else [(b"host", host)]), *ask.headers]
    if ask.token is not None:
        headers.append((b"authorization", b"Bearer " + ask.token.encode()))
    if ask.content_type is not None and any(parts):
        headers.append((b"content-type", ask.content_type))
    if ask.length and any(parts):
        headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    elif any(parts) and not any(name == b"content-length" for name, _ in headers):
        headers.append((b"transfer-encoding", b"chunked"))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": ask.method,
        "path": ask.path, "raw_path": ask.path.encode(), "query_string": ask.query, "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 8_000),
    }  # fmt: skip
    sent: list[Any] = []
    gone = asyncio.Event()

    async def receive() -> Any:
        if not parts:
            await gone.wait()
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def take(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            gone.set()  # As a server does once the answer is whole.

    async with asyncio.timeout(SOON):
        await api(scope, receive, take)
    gone.set()
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent)


def documented(schema: dict[str, Any]) -> dict[tuple[str, str], dict[int, set[str]]]:
    """Return the documented error codes of each operation, by status."""
    found: dict[tuple[str, str], dict[int, set[str]]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            codes = found.setdefault((method.upper(), path), {})
            for status, response in operation["responses"].items():
                shape = response.get("content", {}).get(PROBLEM_JSON, {}).get("schema", {})
                codes[int(status)] = set(shape.get("properties", {}).get("code", {}).get("enum", ()))
    return found


async def trouble_with(
    place: PopulatedApp, ask: MalformedRequest, codes: dict[tuple[str, str], dict[int, set[str]]]
) -> str | None:
    """Send a request. Return the fault of the reply, or None."""
    try:
        status, headers, body = await send(place.api, ask)
    except Exception as problem:
        return f"raised {problem!r}"
    if not 400 <= status < 500:
        return f"answered {status} {body[:200]!r}"
    if headers["content-type"] != PROBLEM_JSON:
        return f"answered {headers['content-type']}"
    if ask.method == "HEAD":
        return f"a HEAD brought {body[:200]!r}" if body else None
    told = json.loads(body)
    code = told["code"]
    if told["status"] != status or STATUSES.get(code) != status or told["type"] != f"urn:headway:problem:{code}":
        return f"says {told} by {status}"
    if len(body) > 20_000:
        return f"says {len(body)} bytes"
    known = codes.get((ask.method, ask.template), {})
    if (
        code not in known.get(status, ())
        and status not in ANYWHERE
        and not (not ask.template and status in (401, 403, 422))
    ):
        return f"{status} {code} is not documented for {ask.method} {ask.template}"
    return None


async def send_malformed(place: PopulatedApp, seed: int, count: int) -> None:
    """Send this many malformed requests. Check that each is refused properly and that the store does not change."""
    api, codes = place.api, documented(place.api.openapi())
    before = await traces(place)
    wrong: list[str] = []
    reasons: dict[str, int] = {}
    for number, ask in zip(range(count), Generator(place, seed), strict=False):
        reasons[ask.why.partition(":")[0]] = reasons.get(ask.why.partition(":")[0], 0) + 1
        if (trouble := await trouble_with(place, ask, codes)) is not None:
            wrong.append(
                f"{number} {ask.why} {ask.method} {ask.path[:90]!r} {ask.query[:40]!r} {ask.body[:150]!r}: {trouble}"
            )
            if len(wrong) >= 20:
                break
    assert not wrong, "\n".join(wrong)
    assert await traces(place) == before
    assert len(reasons) > 30  # The generator reaches all of its kinds.
    async with client_for(api) as http:  # And it still serves.
        http.headers["authorization"] = f"Bearer {place.tokens['admin']}"
        assert (await http.post(TASKS, json=NEW_TASK)).status_code == 201


@pytest.mark.parametrize("store_name", list(GATE))
async def test_malformed_requests_are_refused_and_leave_no_trace(
    place: PopulatedApp, store_name: str, seed: int
) -> None:
    # H4, H8, S-18, S-19, S-21, I11, I14
    await send_malformed(place, seed, GATE[store_name])


@pytest.mark.proof
@pytest.mark.parametrize("store_name", [*GATE, "postgres"])
async def test_ten_thousand_malformed_requests_are_refused(place: PopulatedApp, seed: int) -> None:
    # H4, H8, S-18, S-19, S-21, I11, I14
    await send_malformed(place, seed + 1, PROOF)


def test_json_is_read_as_one_thing() -> None:
    # H8: of two values of one member we would take the last, and who stands before us perhaps the first.
    assert read_json(b'{"a": [{"b": 1}, {"b": 2}]}') == {"a": [{"b": 1}, {"b": 2}]}
    for body in (b'{"a": 1, "a": 1}', b'[{"a": {"b": 1, "c": 2, "b": 3}}]', b'{"a": 1, "\\u0061": 2}', b"\xff", b"["):
        with pytest.raises(Problem):
            read_json(body)
    many = b"{" + b",".join(b'"%d":1' % number for number in range(100_000)) + b',"99999":1}'
    began = time.monotonic()
    with pytest.raises(Problem, match="99999"):
        read_json(many)
    assert time.monotonic() - began < SOON


# ---------------------------------------------------------------------- on a real socket

HEAD = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = b'{"task_type": "odd"}'

# What is sent, in pieces. None of it is a whole request that anybody should serve.
RAW: dict[str, list[bytes]] = {
    "nothing": [],
    "an empty line": [b"\r\n"],
    "rubbish": [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
    "half a line": [b"POST /api/v1/ta"],
    "a head that never ends": [HEAD],
    "one letter at a time": [bytes([letter]) for letter in HEAD[:60]],
    "10,000 headers": [HEAD, b"".join(b"X-%d: y\r\n" % n for n in range(10_000)), b"Content-Length: 20\r\n\r\n", GOOD],
    "101 headers": [HEAD, b"".join(b"X-%d: y\r\n" % n for n in range(101)), b"Content-Length: 20\r\n\r\n", GOOD],
    "a huge header": [HEAD, b"X: " + b"y" * 1_000_000],
    "a huge address": [b"GET /" + b"a" * 1_000_000],
    "a truncated body": [HEAD + b"Content-Length: 20\r\n\r\n", GOOD[:10]],
    "no body": [HEAD + b"Content-Length: 20\r\n\r\n"],
    "a negative length": [HEAD + b"Content-Length: -20\r\n\r\n", GOOD],
    "a length with a sign": [HEAD + b"Content-Length: +20\r\n\r\n", GOOD],
    "a length that is none": [HEAD + b"Content-Length: twenty\r\n\r\n", GOOD],
    "an endless length": [HEAD + b"Content-Length: " + b"9" * 100 + b"\r\n\r\n", GOOD],
    "a huge length": [HEAD + b"Content-Length: 99999999\r\n\r\n", GOOD],
    "too short a length": [HEAD + b"Content-Length: 10\r\n\r\n", GOOD],
    "no length": [HEAD + b"\r\n", GOOD],
    "two lengths": [HEAD + b"Content-Length: 20\r\nContent-Length: 21\r\n\r\n", GOOD],
    "a length and chunks": [HEAD + b"Content-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"],
    "chunks by another name": [HEAD + b"Transfer-Encoding: xchunked\r\n\r\n", b"14\r\n", GOOD, b"\r\n0\r\n\r\n"],
    "chunks that are none": [CHUNKED, b"rubbish\r\n"],
    "a chunk without an end": [CHUNKED, b"14\r\n", GOOD[:5]],
    "a chunk of a huge size": [CHUNKED, b"fffffffffffffffff\r\n", GOOD],
    "a chunk of a negative size": [CHUNKED, b"-14\r\n", GOOD, b"\r\n0\r\n\r\n"],
    "an endless extension of a chunk": [CHUNKED, *[b"14;" + b"x" * 60_000] * 20],
    "endless trailers": [CHUNKED + b"2\r\n{}\r\n0\r\n", *[b"X-Y: " + b"z" * 50_000 + b"\r\n"] * 20],
    "one endless trailer": [CHUNKED + b"2\r\n{}\r\n0\r\nX: ", *[b"z" * 50_000] * 20],
    "a compressed body": [HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"],
    "no content type": [b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n", GOOD],
    "no host": [b"GET /api/v1/tasks HTTP/1.1\r\n\r\n"],
    "another host": [b"GET /api/v1/tasks HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
    "two hosts": [GET + b"Host: localhost\r\n\r\n"],
    "NUL in a header": [GET + b"X: a\0b\r\n\r\n"],
    "NUL in the address": [b"GET /api/v1/tasks/a\0b HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "NUL, encoded": [b"GET /api/v1/tasks/a%00b HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "a slash, encoded": [b"GET /api/v1/tasks/a%2Fb HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "half a letter, encoded": [b"GET /api/v1/tasks/%ED%A0%80 HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "an address out of ASCII": ["GET /api/v1/tasks/ä HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()],
    "folded headers": [GET + b"X: a\r\n b\r\nHost: evil.example\r\n\r\n"],
    "a bare line feed": [b"GET /api/v1/none HTTP/1.1\nHost: localhost\n\n"],
    "a space before the colon": [GET[:-2] + b"\r\nContent-Length : 5\r\n\r\n"],
    "another protocol": [b"GET /api/v1/none HTTP/9.9\r\nHost: localhost\r\n\r\n"],
    "no protocol": [b"GET /api/v1/none\r\n\r\n"],
    "another method": [b"BREW /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "CONNECT": [b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n"],
    "everything": [b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "another site's address": [b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    "HTTP/2 at once": [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    "an upgrade to something": [GET + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n\x00\x00"],
    "a WebSocket without a key": [
        GET.replace(b"tasks", b"tasks/x/stream") + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ],
}


@pytest.fixture
async def port(place: PopulatedApp, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Yield the port of a server that waits only a short time for a request."""
    monkeypatch.setattr(HttpProtocol, "head_seconds", 0.3)
    monkeypatch.setitem(Guard.__init__.__kwdefaults__ or {}, "body_seconds", 0.4)
    async with served(place.api) as address:
        yield int(address.rpartition(":")[2])


async def talk(port: int, parts: Sequence[bytes]) -> bytes:
    """Send bytes part by part, and return all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        async with asyncio.timeout(SOON):
            await writer.drain()
            while piece := await reader.read(65_536):
                heard += piece
                if b"\r\n\r\n" in heard and b"connection: close" not in heard.lower():
                    break  # Answered, and kept open for a better one.
    except ConnectionError:
        pass
    finally:
        writer.close()
    return heard


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("store_name", ["memory"])
async def test_bad_bytes_are_refused_or_cut_off(place: PopulatedApp, port: int) -> None:
    # H8, S-18, S-21
    before = await traces(place)
    answers = await asyncio.gather(*(talk(port, parts) for parts in RAW.values()))
    wrong = {
        name: heard[:200]
        for name, heard in zip(RAW, answers, strict=True)
        if not (heard[:10] == b"HTTP/1.1 4" or not heard)
    }
    assert wrong == {}
    assert await traces(place) == before
    assert (await talk(port, [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("store_name", ["memory"])
async def test_requests_in_one_piece_are_answered_in_their_order(place: PopulatedApp, port: int) -> None:
    token = place.tokens["admin"].encode()
    asks = [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"] * 20
    asks += [GET + b"\r\n", GET + b"Authorization: Bearer %s\r\n\r\n" % token, b"GET /none HTTP/1.1\r\nHost: l\r\n\r\n"]
    asks += [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(asks))
    async with asyncio.timeout(SOON):
        heard = await reader.read(-1)
    writer.close()
    statuses = [part[:3] for part in heard.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200"] * 20 + [b"401", b"200", b"404", b"200"]


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_body_that_nobody_reads_is_not_listened_to_for_long(place: PopulatedApp, port: int) -> None:
    # S-21: it is answered before its body has come, which then drips on.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"Content-Length: 100000\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
    async with asyncio.timeout(SOON):
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await reader.read(65_536)
    writer.close()


@pytest.mark.parametrize("store_name", ["memory"])
async def test_what_follows_a_body_is_no_header(place: PopulatedApp, port: int) -> None:
    # Else a client that may send a body could add to a head that was checked before, and fill our memory.
    token = place.tokens["admin"].encode()
    body = b"%x\r\n%s\r\n0\r\n" % (len(GOOD), GOOD)
    assert (await talk(port, [CHUNKED + body + b"Authorization: Bearer %s\r\n\r\n" % token])).startswith(
        b"HTTP/1.1 401"
    )
    head = CHUNKED[:-2] + b"Authorization: Bearer %s\r\n\r\n" % token
    heard = await talk(port, [head + body + b"Idempotency-Key: " + b"x" * 300 + b"\r\n\r\n"])
    assert heard.startswith(b"HTTP/1.1 201")


# ---------------------------------------------------------------------- what is well formed and yet odd


async def test_a_page_below_a_number_far_away_is_found_at_once(http: httpx.AsyncClient) -> None:
    # S-19: made up by a client that may read; it must not keep a store busy forever.
    made = await http.post(TASKS, json=NEW_TASK)
    for number in (10**15, (1 << 53) + 1, 10**18 - 1):
        async with asyncio.timeout(SOON):
            answer = await http.get(TASKS, params={"cursor": write_cursor(JobQuery(before=number))})
        assert [task["task_id"] for task in answer.json()["items"]] == [made.json()["task_id"]]


async def test_a_task_for_the_end_of_time_spoils_no_list(http: httpx.AsyncClient) -> None:
    ids = []
    for body in (
        {"run_after": "9999-12-31T23:59:59Z", "expires": 86_400 * 3_650},
        {"run_after": "9999-12-31T23:59:59.999-23:59"},
        {"run_after": "0001-01-01T00:00:00+23:59"},
    ):
        answer = await http.post(TASKS, json=NEW_TASK | body)
        assert answer.status_code == 201
        ids.append(answer.json()["task_id"])
    listed = (await http.get(TASKS)).json()["items"]
    assert {task["task_id"] for task in listed} == set(ids)
    for task in listed:
        found = (await http.get(f"{TASKS}/{task['task_id']}")).json()
        moments = [found[name] for name in ("run_after", "expires_at", "created_at") if found[name] is not None]
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment) for moment in moments)


def test_moments_beyond_what_can_be_written_are_written_as_the_last_that_can() -> None:
    assert write_moment(1 << 62) == write_moment(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert write_moment(-(1 << 62)) == "0001-01-01T00:00:00.000Z"
    assert write_moment(1_500) == "1970-01-01T00:00:01.500Z"


ODD_QUESTIONS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "tasks?task_id=a%00", None),
    ("GET", "tasks?" + "&".join(["task_id=a"] * 51), None),
    ("GET", "tasks?task_id=a&status=queued", None),
    ("GET", f"tasks?cursor={1 << 63}", None),
    ("GET", f"tasks?age={1 << 80}", None),
    ("GET", "tasks?task_type=a%00", None),
    ("GET", "tasks?status=lost", None),
    ("GET", "tasks?history=perhaps", None),
    ("GET", "tasks/%00/why", None),
    ("GET", "policy/versions/%00", None),
    ("GET", f"policy/versions/{1 << 70}", None),
    ("GET", "policy/versions?cursor=x", None),
    ("GET", "crons?cursor=a", None),
    ("POST", "tasks/cancel", {"task_ids": ["x"], "reason": "\0"}),
    ("POST", "tasks/cancel", {"task_ids": ["a\0"]}),
    ("POST", "tasks/cancel", {"task_ids": "abc"}),
    ("POST", "tasks/cancel", {"task_ids": []}),
    ("POST", "tasks/retry", {"task_ids": ["x"] * 1_001}),
    ("POST", "dlq/purge", {}),
    ("POST", "dlq/purge", {"task_ids": None}),
    ("POST", "workers/%00/drain", {}),
    ("POST", "pause", {"lane": "\0"}),
    ("POST", "policy/rollback", {"to": "\0"}),
    ("POST", "policy/rollback", {"to": 1 << 70}),
    ("POST", "policy/rollback", {"to": -1}),
]


async def test_odd_questions_of_operators_are_refused(http: httpx.AsyncClient) -> None:
    for method, path, body in ODD_QUESTIONS:
        as_json = {"content-type": "application/json"}
        content = None if body is None else written(body)
        answer = await http.request(method, f"{API}/{path}", content=content, headers=as_json)
        assert answer.status_code in (400, 404, 422), (path, body, answer.text)
        assert answer.headers["content-type"] == PROBLEM_JSON


@pytest.mark.parametrize("store_name", ["memory"])
async def test_names_that_strangers_send_are_not_kept(api: FastAPI) -> None:
    # Each of them would stay in memory, a thousand of them and as long as a header may be.
    for cache in (guard.host_name, guard.same_origin, guard.is_json):
        cache.cache_clear()
    for number in range(50):
        name = b"x" * 10_000 + b"%d" % number
        for headers in ([(b"origin", b"http://" + name)], [(b"x", b"y")]):
            ask = MalformedRequest(
                "host", "POST", TASKS, body=b"{}", headers=[(b"host", name), *headers], content_type=name
            )
            status, _, _ = await send(api, ask, host=None)
            assert status in (403, 415, 421)
    caches = (guard.host_name.cache_info(), guard.same_origin.cache_info(), guard.is_json.cache_info())
    assert sum(cache.currsize for cache in caches) <= 1


def test_answers_are_not_held_back() -> None:
    # asyncio sets TCP_NODELAY where the protocol is named; without it each answer on a kept connection takes 40 ms.
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
