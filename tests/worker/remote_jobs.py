"""Tasks of workers without access to the store. Tests copy the file into their folder, and they import it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from headway import Context, Headway, Limit, Results, Retry, Snooze

app = Headway(heartbeat=0.5, dead_after=3, grace=2, hard_grace=1)
MARKS = Path("marks")


def mark(text: str) -> None:
    with MARKS.open("a") as file:
        file.write(f"{text}\n")


@app.task(name="echo")
async def echo(value: object) -> object:
    mark(f"echo {value}")
    return value


@app.task(name="in_thread", context=True)
def in_thread(ctx: Context, seconds: float = 0.0) -> str:
    mark("in_thread starts")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not ctx.cancelled:
        time.sleep(0.02)
    if ctx.cancelled:
        raise RuntimeError("told to stop")
    return f"{ctx.task} {ctx.attempt}"


@app.task(name="in_process", executor="process")
def in_process(seconds: float = 0.0) -> int:
    mark("in_process starts")
    time.sleep(seconds)
    return os.getpid()


@app.task(name="steps", context=True)
def steps(ctx: Context) -> None:
    ctx.progress(0.5, "half")
    while not Path("go").exists():
        time.sleep(0.02)


@app.task(name="flaky", context=True, max_retries=3, retry=Retry(backoff="fixed", base=0.05))
async def flaky(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return ctx.attempt


@app.task(name="snoozer")
def snoozer() -> str:
    if not Path("snoozed").exists():
        Path("snoozed").touch()
        raise Snooze(0.05)
    return "awake"


@app.task(name="double")
def double(value: int) -> int:
    return 2 * value


@app.task(name="fetch_once", context=True, executor="process", max_retries=1, retry=Retry(backoff="fixed", base=0.05))
def fetch_once(ctx: Context, executor: str) -> list[object]:
    return [ctx.step("fetch", fetched, executor), ctx.step("none", print), fail_once(ctx)]


@app.task(name="fetch_once_async", context=True, max_retries=1, retry=Retry(backoff="fixed", base=0.05))
async def fetch_once_async(ctx: Context, executor: str) -> list[object]:
    return [await ctx.astep("fetch", fetched, executor), await ctx.astep("none", print), fail_once(ctx)]


def fetched(executor: str) -> dict[str, str]:
    mark(f"fetched {executor}")
    return {"by": executor}


def fail_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return ctx.attempt


@app.task(name="slow")
async def slow(seconds: float, number: int = 0) -> int:
    mark(f"slow starts {number}")
    await asyncio.sleep(seconds)
    mark(f"slow ends {number}")
    return number


@app.task(name="hang", timeout=0.5, max_retries=0)
async def hang() -> None:
    await asyncio.sleep(60)


@app.task(name="deaf", timeout=0.5, max_retries=0)
async def deaf() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)


@app.task(name="spin", executor="process", timeout=0.5, max_retries=0)
def spin() -> None:
    while True:
        pass


@app.task(name="elastic", duration="default", context=True, on_stop="partial", max_retries=0)
async def elastic(ctx: Context) -> str:
    mark("elastic starts")
    while not ctx.budget.shrunk:  # noqa: ASYNC110  (the worker changes it)
        await asyncio.sleep(0.01)
    mark("elastic lowered")
    ctx.partial(f"{ctx.budget.remaining:.0f} s left")
    await asyncio.sleep(60)
    return "all"


@app.task(name="needy", duration="slow", max_retries=0)
async def needy() -> None: ...


@app.task(name="follow_up")
async def follow_up(value: int) -> str:
    job = await echo.aenqueue(value)
    return job.id


@app.task(name="exclusive", limits=[Limit(concurrency=1)], max_retries=9)
async def exclusive(run: str, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        mark(f"{run} {os.getpid()} {time.monotonic_ns()}")
        await asyncio.sleep(0.01)


@app.task(name="sum_async")
async def sum_async(parts: Results[int], label: str) -> str:
    values = [part async for part in parts]
    return f"{label} {sum(values)} {len(values)}"


@app.task(name="sum_in_thread")
def sum_in_thread(parts: Results[int], label: str) -> str:
    return f"{label} {sum(parts)} {len(list(parts.failures()))}"


@app.task(name="sum_in_process", executor="process")
def sum_in_process(parts: Results[int], label: str) -> str:
    return f"{label} {sum(parts)}"


@app.task(name="list_failures", max_retries=0)
async def list_failures(parts: Results[int]) -> list[str]:
    return [
        f"{failure.state} {failure.error.message if failure.error else failure.reason}"
        async for failure in parts.afailures()
    ]


@app.task(name="refuse", max_retries=0)
async def refuse(value: int) -> int:
    raise ValueError(f"no {value}")


printer = app.command(
    ["sh", "-c", 'echo began; while [ ! -e "{gate}" ]; do sleep 0.02; done; echo done; exit 4'],
    name="printer",
    max_retries=0,
)
