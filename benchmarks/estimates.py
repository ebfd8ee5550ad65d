"""Cost of estimates to a server: many open streams on a long queue that moves.

    python -m benchmarks.estimates            # on a Valkey of its own, about a minute
    python -m benchmarks.estimates --streams 1000 --waiting 10000

A worker runs jobs meanwhile, so that all places change all the time. Costs are CPU of the serving process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from benchmarks.service import Serving, request, valkey

LENGTH = 0.25  # Seconds of each job.
SLOTS = 8


async def fill(server: Serving, waiting: int) -> list[str]:
    """Submit this many jobs that wait. Return their ids, in order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    task = {"task_type": "demo.sleep", "parameters": {"seconds": LENGTH}}
    body = json.dumps([task] * 500).encode()
    ids: list[str] = []
    while len(ids) < waiting:
        _, answer = await request(reader, writer, "POST", "/api/v1/tasks/bulk", body)
        ids += [kept["task_id"] for kept in json.loads(answer)["tasks"]]
    writer.close()
    return ids[:waiting]


async def follow(port: int, job_id: str, told: dict[str, list[bytes]]) -> None:
    """Read a stream until the task is cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/v1/tasks/{job_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            if line.startswith(b"data:") and b'"estimate"' in line:
                told.setdefault(job_id, []).append(line)
    finally:
        writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, valkey() as store:
        place = Path(folder)
        where = ["--store", store.url, "--log-level", "warning"]
        ours = Serving(["headway", "serve", "--port", "8126", *where], place, 8_126)
        worker = Serving(["headway", "worker", "headway.demo:app", "--slots", str(SLOTS), *where], place, 8_126)
        try:
            await ours.ready()
            ids = await fill(ours, asked.waiting)
            await asyncio.sleep(20)  # The worker needs some runs to learn from.
            before = ours.cpu()
            await asyncio.sleep(asked.seconds)
            idle = (ours.cpu() - before) / asked.seconds
            told: dict[str, list[bytes]] = {}
            last = ids[-1 : -asked.streams - 1 : -1]
            streams = [asyncio.create_task(follow(ours.port, job_id, told)) for job_id in last]
            await asyncio.sleep(max(10.0, asked.streams / 50))
            first = dict(told)
            told.clear()
            before = ours.cpu()
            await asyncio.sleep(asked.seconds)
            busy = (ours.cpu() - before) / asked.seconds
            count = sum(map(len, told.values()))
            print(f"{asked.streams} streams on {asked.waiting} waiting jobs: {busy:.1%} of a core, {idle:.1%} without")
            print(f"  estimates told: {count / asked.seconds:.1f} a second")
            for lines in [*list(first.values())[:1], *list(told.values())[:1]]:
                print("  such as", lines[-1].decode().strip())
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        finally:
            worker.stop()
            ours.stop()


if __name__ == "__main__":
    asyncio.run(main())
