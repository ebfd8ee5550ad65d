"""The probe server of a worker: liveness, readiness and metrics, on loopback only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.client.settings import Settings, load_settings
from headway.core.errors import ConfigError
from headway.worker.probe_server import ProbeServer


async def ask(port: int, request: str, host: str = "127.0.0.1") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    assert f"Content-Length: {len(body.encode())}" in head
    return int(head.split()[1]), body


async def _always_ready() -> None: ...


async def test_it_says_whether_the_worker_lives_and_is_ready() -> None:
    problem: str | None = None

    async def ready() -> str | None:
        return problem

    async def metrics() -> str:
        return "queue_depth 1\n"

    probes = ProbeServer("127.0.0.1:0", ready=ready, metrics=metrics)
    port = await probes.open()
    try:
        assert await ask(port, "GET /healthz") == (200, "ok\n")
        assert await ask(port, "GET /readyz") == (200, "ok\n")
        problem = "draining"
        assert await ask(port, "GET /readyz") == (503, "draining\n")
        assert await ask(port, "GET /metrics?x=1") == (200, "queue_depth 1\n")
        assert (await ask(port, "GET /other"))[0] == 404
        assert (await ask(port, "POST /metrics"))[0] == 405
        assert (await ask(port, "GET /metrics", host="evil.example"))[0] == 403
        assert (await ask(port, "GET /metrics", host=f"localhost:{port}"))[0] == 200
    finally:
        await probes.close()


async def test_metrics_that_cannot_be_gathered_are_no_metrics() -> None:
    async def metrics() -> str:
        raise RuntimeError("no store")

    probes = ProbeServer("localhost:0", ready=_always_ready, metrics=metrics)
    port = await probes.open()
    assert (await ask(port, "GET /metrics"))[0] == 503
    with pytest.raises(ConfigError, match="cannot listen on"):
        await ProbeServer(f"127.0.0.1:{port}", ready=_always_ready, metrics=metrics).open()
    await probes.close()


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "10.1.2.3:9100", "example.org:9100", ":::9100"])
def test_nobody_else_may_reach_it(address: str) -> None:
    with pytest.raises(ConfigError, match="must be on loopback"):
        Settings(worker_http=address)


@pytest.mark.parametrize("address", ["9100x", "127.0.0.1:", "127.0.0.1:99999", "localhost"])
def test_an_address_has_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match="an address such as"):
        load_settings(environment={"HEADWAY_WORKER_HTTP": address})


@pytest.mark.slow
async def test_a_worker_shows_its_store_and_itself(tmp_path: Path) -> None:
    # R5.27, R5.28: and each state change of worker and job is one line of JSON.
    (tmp_path / "tasks.py").write_text(
        "from headway import Headway\napp = Headway()\n@app.task(name='ok')\nasync def ok() -> None: ...\n"
    )
    environment = {
        **os.environ,
        "HEADWAY_STORE": f"sqlite:///{tmp_path}/headway.db",
        "HEADWAY_WORKER_HTTP": "127.0.0.1:0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway", "worker", "tasks:app", "--slots", "3", "--log", "json",
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    port = 0
    lines: list[dict[str, Any]] = []
    async with asyncio.timeout(40):
        while not port or not any(line["event"] == "worker.up" for line in lines):
            lines.append(json.loads(await process.stderr.readline()))
            found = re.search(r"http://127\.0\.0\.1:(\d+)", lines[-1].get("address", ""))
            port = int(found[1]) if found else port
        while (await ask(port, "GET /readyz"))[0] != 200:  # The line comes a moment before its leases are kept.
            pass
        status, body = await ask(port, "GET /metrics")
        assert status == 200
        assert 'workers_total{status="active"} 1.0' in body
        assert 'headway_worker_slots{runner="0"} 3.0' in body
        assert "headway_worker_runners 1.0" in body
        process.send_signal(signal.SIGTERM)
        rest = (await process.stderr.read()).decode().splitlines()
        assert await process.wait() == 0
    lines += [json.loads(line) for line in rest]
    told = [(line["event"], line["worker"]) for line in lines if line["event"].startswith("worker.")]
    assert [event for event, _ in told] == ["worker.up", "worker.draining", "worker.gone"]
    assert len({worker for _, worker in told}) == 1
