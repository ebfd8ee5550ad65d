"""Secrets in the service: callers that may read the task see them, and no others."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.observability.logs import ConsoleFormatter, JsonFormatter
from headway.security.tokens import create_token
from headway.server.api import headway_api
from headway.server.maintenance import run_maintenance
from tests.cli.command import Cli
from tests.server.conftest import client_for
from tests.server.live import served
from tests.server.test_workers import TASKS, register

ARGUMENT, RESULT, ERROR, PASSWORD = (f"canary-{name}-5f1d6c3b2a10" for name in ("argument", "result", "error", "pass"))
JOBS = (ARGUMENT, RESULT, ERROR)
NOWHERE = "127.0.0.1:1"  # Nothing listens there.


class LineRecorder(logging.Handler):
    """A handler that keeps every line that a logger of this process would write at info, in each format."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self._forms = (JsonFormatter(), ConsoleFormatter(colour=False), logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] not in ("httpx", "httpcore"):  # Those are the client's.
            self.lines += [form.format(record) for form in self._forms]

    def naming(self, *words: str) -> list[str]:
        return [line for line in self.lines if any(word in line for word in words)]


@pytest.fixture
def logs() -> Iterator[LineRecorder]:
    lines = LineRecorder()
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("headway", "uvicorn", "uvicorn.error"))]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.INFO)
    loggers[0].addHandler(lines)
    yield lines
    loggers[0].removeHandler(lines)
    for logger, level in before:
        logger.setLevel(level)


@pytest.mark.parametrize("store_name", ["memory", "redis"])
async def test_secrets_of_tasks_are_told_where_they_must_be_and_nowhere_else(
    app: Headway, api: FastAPI, logs: LineRecorder
) -> None:
    # S-25
    store = await app.client.store()
    _, admin = await create_token(store, ["admin"], now_at=1)
    _, reader = await create_token(store, ["read"], now_at=1)
    api.state.service.tokens.every = 0.05
    told: dict[str, str] = {}  # By what was asked: the answer.
    async with served(api) as address, httpx.AsyncClient(base_url=address, timeout=20) as http:
        http.headers["authorization"] = f"Bearer {admin}"
        worker = await register(http, reserved=0)
        ids: list[str] = []
        for end in (
            {"status": "completed", "result": {"value": RESULT}},
            {"status": "failed", "error": {"message": ERROR, "traceback": ERROR, "retriable": False}},
            {"status": "released"},
            {"status": "snoozed", "retry_after_seconds": 60},
        ):
            body = {"task_type": "secretive", "parameters": {"value": ARGUMENT}, "idempotency_key": f"key {len(ids)}"}
            answer = await http.post(TASKS, json=body)
            ids.append(answer.json()["task_id"])
            told[f"submit {len(ids)}"] = answer.text
            conflict = await http.post(TASKS, json=body | {"parameters": {"other": ARGUMENT}})
            assert conflict.status_code == 409
            told[f"conflict {len(ids)}"] = conflict.text
            given = await worker.claim()
            answer = await worker.say("result", task_id=given["task_id"], fence=given["fence"], **end)
            told[f"result {len(ids)}"] = answer.text
            lost = await worker.say("result", task_id=given["task_id"], fence="00", status="completed", result=RESULT)
            assert lost.status_code == 409
            told[f"lost {len(ids)}"] = lost.text
            if end["status"] == "released":
                await http.delete(f"{TASKS}/{given['task_id']}")
        # Bodies that are refused: what was wrong is said, not what was sent.
        for odd in (
            {"task_type": "add", "parameters": {"a": ARGUMENT}},
            {"task_type": "add", "parameters": {"a": 1, "b": [ARGUMENT]}},
            {"task_type": "secretive", "parameters": {"value": {"deep": [ARGUMENT, float("nan")]}}},
            {"task_type": "secretive", "parameters": ARGUMENT},
            {"task_type": "secretive", "timeout_seconds": ARGUMENT},
            {"task_type": "secretive", "run_after": ARGUMENT},
            {"task_type": ["secretive", ARGUMENT]},
        ):
            content = json.dumps(odd).encode()
            for path, sent in ((TASKS, content), (f"{TASKS}/bulk", b"[" + content + b"]")):
                answer = await http.post(path, content=sent, headers={"content-type": "application/json"})
                assert answer.status_code == 422, answer.text
                told[f"odd {odd} {path}"] = answer.text
        broken = await http.post(
            TASKS, content=f'{{"task_type": "{ARGUMENT}'.encode(), headers={"content-type": "application/json"}
        )
        told["broken"] = broken.text
        for path in (
            "/metrics",
            "/docs",
            "/openapi.json",
            "/healthz",
            "/readyz",
            "/api/v1/queue/stats",
            "/api/v1/catalogue",
        ):
            told[path] = (await http.get(path)).text
        for path in ("/api/v1/workers", "/api/v1/policy", *(f"/task/{task_id}" for task_id in ids)):
            told[path] = (await http.get(path)).text
        for wrong in (f"Bearer {admin}x", f"Bearer hw_0000000000_{PASSWORD}", f"Basic {PASSWORD}"):
            answer = await http.get(TASKS, headers={"authorization": wrong})
            assert answer.status_code == 401
            told[f"token {wrong[:8]}"] = answer.text
        leaked = await http.get(f"{TASKS}?access_token={admin}")
        assert leaked.status_code == 400
        told["token in the address"] = leaked.text
        # Who may read the task is told.
        http.headers["authorization"] = f"Bearer {reader}"
        completed, failed = [(await http.get(f"{TASKS}/{task_id}")).json() for task_id in ids[:2]]
        assert (completed["payload"]["parameters"], completed["result"]) == ({"value": ARGUMENT}, {"value": RESULT})
        assert failed["error"]["message"] == ERROR
    secrets = (*JOBS, PASSWORD, admin, reader, admin.split("_", 2)[2])
    assert {asked: text[:300] for asked, text in told.items() if any(word in text for word in secrets)} == {}
    assert logs.lines
    assert logs.naming(*secrets) == []


@pytest.mark.parametrize(
    "address", [f"redis://:{PASSWORD}@{NOWHERE}/0", f"postgresql://user:{PASSWORD}@{NOWHERE}/headway"]
)
async def test_the_password_of_a_store_that_is_away_is_told_to_nobody(
    address: str, tmp_path: Path, logs: LineRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S-26
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headway.stores.redis.client.PATIENCE", 0.05)
    app = Headway(address, token=PASSWORD)
    api = headway_api(app, hosts=["testserver"])
    async with run_maintenance(api.state.service), client_for(api) as http:
        for method, path in (
            ("GET", TASKS),
            ("POST", TASKS),
            ("GET", "/readyz"),
            ("GET", "/metrics"),
            ("POST", "/task"),
        ):
            body = None if method == "GET" else {"task_type": "x"}
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 503, answer.text
            assert PASSWORD not in answer.text
            assert "127.0.0.1" not in answer.text
        assert (await http.get("/healthz")).status_code == 200
        async with asyncio.timeout(30):
            while not logs.naming("store.unavailable"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await app.aclose()
    assert PASSWORD not in f"{app!r} {app.settings!r} {app.settings} {api.state.service!r}"
    assert logs.naming(PASSWORD) == []


def test_doctor_tells_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S-26
    monkeypatch.setattr("headway.stores.redis.client.PATIENCE", 0.05)
    cli = Cli(tmp_path)
    for address in (f"redis://:{PASSWORD}@{NOWHERE}/0", f"postgresql://user:{PASSWORD}@{NOWHERE}/headway"):
        ran = cli.call("doctor", "--json", "--store", address, code=1)
        assert "***" in ran.out
        assert PASSWORD not in ran.out + ran.err
