"""Commands over HTTP: files in and out as JSON."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from headway import Headway, Output
from headway.server.api import headway_api
from headway.worker.embedded import Worker
from tests.server.conftest import client_for
from tests.server.test_tasks import TASKS, ended, submit


def declare(app: Headway) -> None:
    app.command(
        ["sh", "-c", 'cat drawing.asy data.bin > "out.$0"', "{format}"],
        name="asy.render",
        collect=["out.*"],
        choices={"format": ["svg", "pdf"]},
        max_retries=0,
    )


def body(**parameters: Any) -> dict[str, Any]:
    return {"task_type": "asy.render", "parameters": parameters}


FILES = {"drawing.asy": "draw((0,0)--(1,1));", "data.bin": {"base64": base64.b64encode(b"\xff\0").decode()}}


async def test_files_go_in_and_come_out_as_json(http: httpx.AsyncClient, app: Headway) -> None:
    # R3.43, R3.91
    declare(app)
    async with Worker(app):
        task_id = await submit(http, **body(format="svg", files=FILES))
        text_id = await submit(http, **body(format="pdf", files=FILES | {"data.bin": ""}))
        task, text = await ended(http, task_id), await ended(http, text_id)
    raw = b"draw((0,0)--(1,1));\xff\0"
    assert task["result"] == {
        "exit_code": 0,
        "stdout": "",
        "stderr": "",
        "files": {"out.svg": {"base64": base64.b64encode(raw).decode()}},
        "seconds": task["result"]["seconds"],
    }
    assert text["result"]["files"] == {"out.pdf": "draw((0,0)--(1,1));"}
    result = await app.tasks["asy.render"].job(task_id).aresult()
    assert isinstance(result, Output)
    assert result.files == {"out.svg": raw}


async def test_a_failure_is_told(http: httpx.AsyncClient, app: Headway) -> None:
    declare(app)
    async with Worker(app):
        task = await ended(http, await submit(http, **body(format="svg")))
    assert task["status"] == "dead_letter"
    assert task["error"]["message"].startswith("sh exited with code 1: cat: ")


WRONG: list[dict[str, Any]] = [
    {},
    {"format": "png"},
    {"format": "svg", "shell": "yes"},
    {"format": "svg", "files": {"../x": ""}},
    {"format": "svg", "files": {"x": {"base64": "%"}}},
    {"format": "svg", "files": {f"{number}": "" for number in range(101)}},
]


async def test_what_does_not_fit_is_refused(http: httpx.AsyncClient, app: Headway) -> None:
    declare(app)
    for parameters in WRONG:
        answer = await http.post(TASKS, json=body(**parameters))
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_arguments"), parameters


async def test_a_server_without_the_app_goes_by_the_catalogue(app: Headway) -> None:
    declare(app)
    async with Worker(app):
        other = Headway(app.settings.store)
        if app.settings.store.startswith("memory"):
            other.client = app.client
        async with client_for(headway_api(other, hosts=["testserver"])) as http:
            for parameters in WRONG[:3]:
                answer = await http.post(TASKS, json=body(**parameters))
                assert (answer.status_code, answer.json()["code"]) == (422, "bad_arguments"), parameters
            late = await ended(http, await submit(http, **body(**WRONG[3])))
            task = await ended(http, await submit(http, **body(format="pdf", files=FILES | {"data.bin": "!"})))
        await other.aclose()
    # What the catalogue cannot say, the worker checks before anything runs.
    assert (late["status"], late["error"]["retriable"]) == ("failed", False)
    assert "a name is a path inside the folder" in late["error"]["message"]
    assert task["result"]["files"] == {"out.pdf": "draw((0,0)--(1,1));!"}
