"""The example service in its own processes, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY")}
PATIENCE = 30.0
STAR = "repeat 5\n  forward 60\n  turn 144\nend\n"
ENDLESS = "forever\n  turn 1\nend\n"


class Service:
    """A client that submits to the service and reads its streams, as its page does."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.http = httpx.Client(base_url=address, timeout=PATIENCE)

    def submit(
        self,
        text: str,
        duration: str,
        *,
        task: str = "draw.draw",
        kind: str = "svg",
        on_stop: str | None = None,
        **files: str,
    ) -> str:
        body = self.body(text, duration, task=task, kind=kind, **files) | {"on_stop": on_stop}
        answer = self.http.post("/headway/api/v1/tasks", json=body)
        assert answer.status_code in (200, 201, 202), answer.text
        return str(answer.json()["task_id"])

    def submit_many(self, text: str, duration: str, count: int) -> list[str]:
        answer = self.http.post("/headway/api/v1/tasks/bulk", json=[self.body(text, duration)] * count)
        return [task["task_id"] for task in answer.json()["tasks"]]

    def body(self, text: str, duration: str, *, task: str = "draw.draw", kind: str = "svg", **files: str) -> Any:
        given = files or {"drawing.txt": text}
        return {"task_type": task, "parameters": {"format": kind, "files": given}, "duration": duration}

    def cancel(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.http.delete(f"/headway/api/v1/tasks/{task_id}")

    def status(self, task_id: str) -> str:
        return str(self.http.get(f"/headway/api/v1/tasks/{task_id}").json()["status"])

    def load(self) -> tuple[int, int]:
        """Return the number of slots, and how many are busy."""
        workers = self.http.get("/headway/api/v1/queue/stats").json()["workers"]
        return workers["total_capacity"], workers["used_capacity"]

    @contextlib.asynccontextmanager
    async def stream(self, task_id: str, **query: str) -> AsyncIterator[Stream]:
        path = f"/headway/api/v1/tasks/{task_id}/stream?{urlencode(query)}"
        async with connect(self.address.replace("http", "ws") + path, proxy=None) as socket:
            yield Stream(socket)

    async def story(self, task_id: str) -> list[dict[str, Any]]:
        """Read the messages of a task until the stream ends."""
        async with self.stream(task_id) as stream:
            return await stream.rest()


class Stream:
    """The stream of one task."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def hear(self, kind: str) -> dict[str, Any]:
        """Read messages until one has this type, and return it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message: dict[str, Any] = json.loads(await self._socket.recv())
                if message["type"] == kind:
                    return message

    async def rest(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    found.append(json.loads(await self._socket.recv()))
        return found


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Service]:
    """Start the example as ``make example-asymptote`` does, and stop it as Ctrl-C does."""
    port, log = free_port(), folder / "example.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "examples/asymptote/start.py"],
            cwd=ROOT,
            env={**OUTSIDE, "PORT": str(port)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        service = Service(f"http://127.0.0.1:{port}")
        until = time.monotonic() + PATIENCE
        while not _is_up(service):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        with contextlib.closing(service.http):
            yield service
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_up(service: Service) -> bool:
    try:
        return service.load()[0] > 0
    except httpx.TransportError:
        return False
