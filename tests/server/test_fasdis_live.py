"""Two instances on one Redis, as `uvicorn headway.server.main:app` starts them: each keeps its own limits."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from headway.server.uvicorn_server import bind
from tests.cli.command import Cli, until
from tests.conftest import ADDRESSES

LONG = {"task_type": "demo.sleep", "parameters": {"seconds": 60}}


@contextmanager
def instances(folder: Path, store: str, count: int) -> Iterator[list[httpx.Client]]:
    """Start instances with three slots each, one of them reserved for high."""
    # R1.2, R1.6, R1.30
    processes, clients = [], []
    environment = Cli(folder).environment(
        {
            "HEADWAY_STORE": store,
            "MAX_CONCURRENT_TASKS": "3",
            "HIGH_PRIORITY_RESERVED": "1",
            "HEADWAY_GRACE": "0",
        }
    )
    try:
        for _ in range(count):
            with bind("127.0.0.1", 0) as listener:
                port = listener.getsockname()[1]
            words = [sys.executable, "-m", "uvicorn", "headway.server.main:app", "--port", str(port)]
            processes.append(subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.DEVNULL))
            clients.append(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20))
        until(lambda: all(map(_answers, clients)))
        yield clients
    finally:
        for client in clients:
            client.close()
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def running(client: httpx.Client) -> Counter[tuple[str, str]]:
    """Return the number of running tasks by instance and lane."""
    tasks = client.get("/api/v1/tasks", params={"status": "executing"}).json()["items"]
    return Counter((task["assigned_worker_id"], task["priority"]) for task in tasks)


@pytest.mark.parametrize("store_name", ["redis"])
def test_two_instances_share_a_queue_and_each_keeps_its_own_limits(tmp_path: Path, store_name: str) -> None:
    # R1.4, R1.7, R1.8, R1.10, R1.12, R1.14, R1.15, R1.20, R1.22, R1.23, R1.24
    with instances(tmp_path, ADDRESSES[store_name](tmp_path), 2) as (one, two):
        low = [one.post("/task", json=LONG).json()["task_id"] for _ in range(6)]
        until(lambda: sum(running(one).values()) == 4)
        assert sorted(running(two).values()) == [2, 2]  # Two low ones each; the third slot is kept.
        high = [two.post("/task", json=LONG | {"priority": "high"}).json()["task_id"] for _ in range(2)]
        until(lambda: sum(running(one).values()) == 6)
        assert sorted(running(one).values()) == [1, 1, 2, 2]
        records = [one.get(f"/task/{task_id}").json() for task_id in high]
        assert {record["status"] for record in records} == {"processing"}
        assert len({record["processed_by"] for record in records}) == 2  # No limbo: each went where a slot was free.
        assert {record["scheduled_by"] for record in records} < {record["processed_by"] for record in records}
        waiting = [task for task in low if one.get(f"/task/{task}").json()["status"] == "queued"]
        assert len(waiting) == 2
        # A slot that falls free anywhere takes the next one at once.
        first = next(task for task in low if task not in waiting)
        two.delete(f"/api/v1/tasks/{first}")
        until(lambda: one.get(f"/task/{waiting[0]}").json()["status"] == "processing")


@pytest.mark.parametrize("store_name", ["redis"])
def test_high_uses_every_slot_of_every_instance_when_nothing_else_runs(tmp_path: Path, store_name: str) -> None:
    # R1.9, R1.13, R1.16, R1.24
    with instances(tmp_path, ADDRESSES[store_name](tmp_path), 2) as (one, two):
        for _ in range(7):
            one.post("/task", json=LONG | {"priority": "high"})
        until(lambda: sum(running(two).values()) == 6)
        assert sorted(running(two).values()) == [3, 3]
        assert one.get("/api/v1/queue/stats").json()["queues"]["high"]["depth"] == 1
