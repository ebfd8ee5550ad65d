"""A server in its own process, with an app whose jobs show every state and reason."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import httpx

from tests.cli.command import Cli, RunningCommand

APP = """
import asyncio
from headway import Context, Headway, Limit

app = Headway(STORE, slots=4, reserved=1, policy="policy.toml")


@app.task(name="reports.export", duration="slow", limits=[Limit(concurrency=2, by="account")])
async def export(month: str, account: str = "a", password: str = "secret") -> None:
    await asyncio.sleep(3600)


@app.task(name="mail.send")
async def send(to: str) -> str:
    return f"sent to {to}"


@app.task(name="billing.charge", max_retries=0)
async def charge(invoice: int) -> None:
    raise ValueError(f"card of invoice {invoice} was declined")


@app.task(name="images.resize", context=True)
async def resize(ctx: Context, path: str) -> None:
    ctx.progress(0.4, "tile 2 of 5")
    await asyncio.sleep(3600)


@app.cron("0 3 * * 1-5", name="reports.nightly", tz="Europe/Paris")
async def nightly() -> None: ...
"""
POLICY = """
[ladder]
rungs = [
  { name = "fast", seconds = 3 },
  { name = "medium", seconds = 60, limit = "75%" },
  { name = "slow", seconds = 7200, limit = "75%" },
]
[tenants.weights]
acme = 3
"""
PATIENCE = 30.0


class Site:
    """`headway up` with an app, or `headway serve` without a worker, on a store, in a folder."""

    def __init__(self, folder: Path, store: str, *, worker: bool = True, **variables: str) -> None:
        self.store = store
        self.cli = Cli(folder)
        (folder / "shop.py").write_text(APP.replace("STORE", repr(store)))
        (folder / "policy.toml").write_text(POLICY)
        self._words = ["up", "shop:app"] if worker else ["serve", "--store", store]
        self._variables = variables
        self._started: RunningCommand | None = None
        self.up: dict[str, Any] = {}  # What the server said when it was ready.
        self.address = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, port: int = 0) -> None:
        """Start the server on this port, or on any free one."""
        self._started = self.cli.start(*self._words, "--port", str(port), **self._variables)
        self.up = self._started.wait_for("server.up")
        self.address = self.up["address"]

    def stop(self) -> None:
        if self._started is not None:
            self._started.end()

    @property
    def ui(self) -> str:
        return f"{self.address}/ui/"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def get(self, path: str, **query: Any) -> Any:
        """Return a reply of the HTTP interface."""
        return httpx.get(f"{self.address}/api/v1/{path}", params=query, timeout=20).raise_for_status().json()

    def post(self, path: str, body: Any) -> Any:
        return httpx.post(f"{self.address}/api/v1/{path}", json=body, timeout=20).raise_for_status().json()

    def submit(self, task: str, parameters: dict[str, Any], **options: Any) -> str:
        """Submit a job. Return its id."""
        body = {"task_type": task, "parameters": parameters, **options}
        return str(self.post("tasks", body)["task_id"])

    def wait_for(self, job_id: str, status: str) -> dict[str, Any]:
        """Wait until a job has a status."""
        deadline = time.monotonic() + PATIENCE
        while True:
            task: dict[str, Any] = self.get(f"tasks/{job_id}")
            if task["status"] == status:
                return task
            assert time.monotonic() < deadline, f"{job_id} is {task['status']}, not {status}"
            time.sleep(0.05)

    def fill(self) -> None:
        """Submit jobs until some have completed, some have failed, some run, and some wait for different reasons."""
        sent = [self.submit("mail.send", {"to": f"u{number}@example.com"}, tenant="acme") for number in range(3)]
        dead = [self.submit("billing.charge", {"invoice": number}, tenant="globex") for number in (7, 8)]
        for job_id in sent:
            self.wait_for(job_id, "completed")
        for job_id in dead:
            self.wait_for(job_id, "dead_letter")
        self.wait_for(self.submit("images.resize", {"path": "/img/7.png"}, tenant="acme"), "executing")
        running = self.submit("reports.export", {"month": "2026-01"}, tenant="globex", priority="high")
        self.wait_for(running, "executing")
        for month in range(2, 8):
            self.submit("reports.export", {"month": f"2026-{month:02}"}, tenant="globex", priority="low")
        self.submit("mail.send", {"to": "later@example.com"}, run_after="2099-01-01T00:00:00Z")
