"""The built-in demo app: what ``headway up`` runs when no app is given."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headway.client.app import Headway
from headway.client.context import Context

app = Headway()


@app.task(name="demo.noop")
async def noop() -> None:
    """Do nothing."""


@app.task(name="demo.echo")
async def echo(value: Any) -> Any:
    """Return the value."""
    return value


@app.task(name="demo.sleep")
async def sleep(seconds: float = 1) -> None:
    """Wait, as for something outside."""
    await asyncio.sleep(seconds)


@app.task(name="demo.fail")
async def fail(message: str = "this task always fails") -> None:
    """Raise an error; after some retries the job is a dead letter."""
    raise RuntimeError(message)


@app.task(name="demo.cpu", executor="process")
def cpu(seconds: float = 1) -> int:
    """Keep one processor busy; returns how many rounds it made."""
    rounds, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        rounds += 1
    return rounds


@app.task(name="demo.progress", context=True)
async def progress(context: Context, steps: int = 10, seconds: float = 1) -> int:
    """Take this many steps in this many seconds, and report progress after each."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        context.progress(step / steps, f"step {step} of {steps}")
    return steps
