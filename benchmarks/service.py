"""Cost of the HTTP interface: submits beside a bare route that only echoes, and many open streams.

    python -m benchmarks.service            # on a Valkey of its own, about two minutes
    python -m benchmarks.service --streams 2000

Costs are CPU microseconds of the serving process for one request, at the same number of connections; ratios are to the
bare route, measured in turns with the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from tests.servers import Valkey

TICKS = os.sysconf("SC_CLK_TCK")
BARE = """
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Body(BaseModel):
    task_type: str
    parameters: dict = {}
    priority: str | None = None


@app.post("/echo")
async def echo(body: Body) -> Body:
    return body
"""
TASK = {"task_type": "demo.echo", "parameters": {"value": "hello"}, "priority": "high"}
ONE, BULK = json.dumps(TASK).encode(), json.dumps([TASK] * 100).encode()


class Serving:
    """A server in its own process."""

    def __init__(self, words: list[str], folder: Path, port: int, **variables: str) -> None:
        self.port = port
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=folder, env=os.environ | variables, stderr=subprocess.DEVNULL
        )

    def cpu(self) -> float:
        """Return the CPU seconds that the server has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Return the server's own memory in MiB."""
        text = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        return int(text.partition("Pss:")[2].split()[0]) / 1_024

    async def ready(self) -> None:
        for _ in range(200):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.1)
        raise TimeoutError("a server did not start")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(15)


async def request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    return int(answer.split(b" ", 2)[1]), await reader.readexactly(length)


async def load(
    server: Serving, path: str, body: bytes, *, connections: int, seconds: float
) -> tuple[float, list[float]]:
    """Post the same body repeatedly. Return the server's CPU µs per request, and how long each request took."""
    took: list[float] = []
    until = time.monotonic() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while time.monotonic() < until:
            began = time.monotonic()
            status, answer = await request(reader, writer, "POST", path, body)
            assert status < 300, answer
            took.append(time.monotonic() - began)
        writer.close()

    before = server.cpu()
    await asyncio.gather(*(client() for _ in range(connections)))
    return (server.cpu() - before) / len(took) * 1e6, took


async def measure_submits(bare: Serving, ours: Serving, *, rounds: int, seconds: float, connections: int) -> None:
    cases: dict[str, Callable[[], Awaitable[tuple[float, list[float]]]]] = {
        "bare route": lambda: load(bare, "/echo", ONE, connections=connections, seconds=seconds),
        "POST /api/v1/tasks": lambda: load(ours, "/api/v1/tasks", ONE, connections=connections, seconds=seconds),
        "POST …/bulk of 100": lambda: load(ours, "/api/v1/tasks/bulk", BULK, connections=connections, seconds=seconds),
    }
    costs: dict[str, list[float]] = {name: [] for name in cases}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            cost, took = await run()
            costs[name].append(cost)
            times[name] += took
    base = costs["bare route"]
    print(f"{'':22} {'CPU µs':>8} {'ratio':>7} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}")
    for name in cases:
        ratio = statistics.median(cost / bare_cost for cost, bare_cost in zip(costs[name], base, strict=True))
        taken = sorted(times[name])
        rate = len(taken) / (rounds * seconds)
        p50, p99 = taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3
        print(f"{name:22} {statistics.median(costs[name]):8.0f} {ratio:6.1f}x {rate:11.0f} {p50:8.2f} {p99:8.2f}")


async def measure_streams(ours: Serving, count: int) -> None:
    """Open streams on waiting jobs, half of them WebSockets. Cancel the jobs and count the streams that report it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ours.port)
    ids: list[str] = []
    body = json.dumps([{"task_type": "bench.nobody", "parameters": {}}] * 500).encode()
    while len(ids) < count:
        _, answer = await request(reader, writer, "POST", "/api/v1/tasks/bulk", body)
        ids += [task["task_id"] for task in json.loads(answer)["tasks"]]
    ids = ids[:count]
    memory = ours.memory()
    told = [asyncio.create_task(follow(ours.port, job_id, socket=index % 2 == 0)) for index, job_id in enumerate(ids)]
    await asyncio.sleep(10)
    print(f"{count} streams open: {(ours.memory() - memory) * 1_024 / count:.0f} KiB each")
    before = ours.cpu()
    await asyncio.sleep(10)
    print(f"  CPU while nothing happens: {(ours.cpu() - before) * 10:.1f} %")
    for job_id in ids:
        await request(reader, writer, "DELETE", f"/api/v1/tasks/{job_id}")
    async with asyncio.timeout(60):
        right = sum(await asyncio.gather(*told))
    print(f"  told of their end: {right} of {count}")
    writer.close()


async def follow(port: int, job_id: str, *, socket: bool) -> bool:
    """Read a stream to its end. Return whether it reported that its job was cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/api/v1/tasks/{job_id}/{'stream' if socket else 'events'}"
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n"
    )
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{upgrade if socket else ''}\r\n".encode())
    found = b""
    while part := await reader.read(65_536):
        found = (found + part)[-4_096:]
        if b'"status":"cancelled"' in found:
            writer.close()
            return True
    return False


@contextlib.contextmanager
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder), 'save ""')
        server.start()
        try:
            yield server
        finally:
            server.stop()


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--streams", type=int, default=2_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, valkey() as store:
        place = Path(folder)
        (place / "bare.py").write_text(BARE)
        root = {"PYTHONPATH": str(place)}
        bare = Serving(
            ["uvicorn", "bare:app", "--port", "8123", "--no-access-log", "--log-level", "warning"], place, 8_123, **root
        )
        words = ["headway", "serve", "--port", "8124", "--store", store.url, "--log-level", "warning"]
        ours = Serving(words, place, 8_124, **root)
        try:
            await bare.ready()
            await ours.ready()
            await measure_submits(bare, ours, rounds=asked.rounds, seconds=asked.seconds, connections=asked.connections)
            if asked.streams:
                await measure_streams(ours, asked.streams)
        finally:
            bare.stop()
            ours.stop()


if __name__ == "__main__":
    asyncio.run(main())
