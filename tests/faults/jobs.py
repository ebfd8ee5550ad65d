"""The tasks of fault tests. Each writes a mark into a file when it starts and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from headway import Context, Headway, Limit, Retry

app = Headway(heartbeat=0.5, dead_after=3, confirm=1, grace=2, hard_grace=1)
MARKS = Path("marks")


def mark(text: str) -> None:
    with MARKS.open("a") as file:
        file.write(f"{text}\n")


@app.task(name="quick")
async def quick(number: int) -> int:
    mark(f"quick {number}")
    return number


@app.task(name="hoard")
async def hoard() -> int:
    """Open files until no descriptor is left, and hold them until a file called ``enough`` exists."""
    held = []
    try:
        while True:
            held.append(open(MARKS, "a"))  # noqa: ASYNC230, SIM115 - that is the point
    except OSError:
        held.pop().close()
        mark("hoard is full")
        held.append(open(MARKS, "a"))  # noqa: ASYNC230, SIM115
    while not MARKS.with_name("enough").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for file in held:
        file.close()
    return len(held)


@app.task(name="slow")
async def slow(seconds: float) -> str:
    mark(f"slow starts {os.getpid()}")
    await asyncio.sleep(seconds)
    mark("slow ends")
    return "done"


@app.task(name="end_loop")
async def end_loop(way: str) -> None:
    """End the event loop that runs all jobs of this process."""
    if way == "stop_loop":
        asyncio.get_running_loop().stop()
    elif way == "cancel_all":
        for task in asyncio.all_tasks():
            task.cancel()
    else:
        child = asyncio.create_task(_exit())
        await asyncio.wait([child])
    await asyncio.sleep(60)


async def _exit() -> None:
    sys.exit("a program that was not written for an event loop")


@app.task(name="passing", persist=False)
async def passing(number: int, seconds: float = 0.0) -> None:
    mark(f"passing start {number} {time.monotonic_ns()}")
    await asyncio.sleep(seconds)
    mark(f"passing end {number} {time.monotonic_ns()}")


@app.task(name="kept")
async def kept(number: int, seconds: float = 0.0) -> None:
    mark(f"kept start {number} {time.monotonic_ns()}")
    await asyncio.sleep(seconds)
    mark(f"kept end {number} {time.monotonic_ns()}")


program = app.command(["sh", "-c", "{script}"], name="program", max_retries=5)


@app.task(name="slow_thread", context=True)
def slow_thread(ctx: Context, seconds: float) -> str:
    mark("slow_thread starts")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not ctx.cancelled:
        time.sleep(0.02)
    if ctx.cancelled:
        raise RuntimeError("told to stop")
    return "done"


@app.task(name="slow_process", executor="process")
def slow_process(seconds: float) -> str:
    mark(f"slow_process starts {os.getpid()}")
    time.sleep(seconds)
    return "done"


@app.task(name="know_job", executor="process", context=True)
def know_job(ctx: Context) -> tuple[int, str]:
    return ctx.submitted_at, ctx.log_facts()["worker"]


@app.task(name="spin", executor="process", timeout=1, max_retries=0)
def spin() -> None:
    while True:
        pass


@app.task(name="segfault", executor="process")
def segfault() -> None:
    mark("segfault")
    ctypes.string_at(0)


@app.task(name="leave_in_process", executor="process")
def leave_in_process() -> None:
    mark("leave_in_process")
    os._exit(1)


@app.task(name="leave_in_thread")
def leave_in_thread() -> None:
    mark("leave_in_thread")
    os._exit(1)


@app.task(name="block_loop")
async def block_loop(seconds: float) -> str:
    mark("block_loop")
    time.sleep(seconds)  # noqa: ASYNC251  (that is the fault)
    return "done"


@app.task(name="ignore_cancel", timeout=0.5, max_retries=0)
async def ignore_cancel() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)


@app.task(name="ignore_in_thread", timeout=0.5, max_retries=0)
def ignore_in_thread() -> None:
    time.sleep(60)


@app.task(name="ignore_and_give_up", timeout=0.5, max_retries=50, retry=Retry(give_up_on=(TimeoutError,)))
def ignore_and_give_up() -> None:
    mark("ignore_and_give_up")
    time.sleep(60)


@app.task(name="leave_grandchild", executor="process")
def leave_grandchild() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    mark(f"grandchild {child.pid}")
    time.sleep(60)


@app.task(name="leave_programs", executor="process")
def leave_programs(seconds: float) -> int:
    """Start a program that stays in the process group, and one that leaves it and loses its parent."""
    child = subprocess.Popen(["sleep", "1000"])
    mark(f"program {child.pid}")
    subprocess.run(["sh", "-c", "setsid sh -c 'echo program $$ >> marks; exec sleep 1000' &"], check=True)
    while len([line for line in MARKS.read_text().splitlines() if line.startswith("program ")]) < 2:
        time.sleep(0.01)
    mark("programs started")
    time.sleep(seconds)
    return os.getpid()


@app.task(name="use_pool", executor="process")
def use_pool(number: int) -> tuple[int, int]:
    with ProcessPoolExecutor(1) as pool:
        return os.getpid(), pool.submit(abs, -number).result()


@app.task(name="capped", limits=[Limit(concurrency=2), Limit(concurrency=1, by="account")])
async def capped(number: int, account: int, seconds: float) -> int:
    mark(f"capped start {number} {account} {os.getpid()} {time.monotonic_ns()}")
    await asyncio.sleep(seconds)
    mark(f"capped end {number} {account} {os.getpid()} {time.monotonic_ns()}")
    return number


@app.task(name="rated", limits=[Limit(rate="20/s")])
async def rated(number: int) -> int:
    mark(f"rated {number} {os.getpid()}")
    return number


@app.cron("* * * * * *", name="every_second", overlap="allow")
def every_second() -> None:
    mark("tick")


@app.task(name="climb", context=True, executor="process", max_retries=20)
def climb(ctx: Context, rung: str, number: int, seconds: float) -> None:
    mark(f"climb start {rung} {number} {os.getpid()} {time.monotonic_ns()}")
    ends = time.monotonic() + seconds
    try:
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(0.02, left))
            mark(f"climb runs {rung} {number} {os.getpid()} {time.monotonic_ns()}")
    finally:
        mark(f"climb end {rung} {number} {os.getpid()} {time.monotonic_ns()}")


@app.task(name="exclusive", limits=[Limit(concurrency=1)], max_retries=9)
async def exclusive(run: str, seconds: float) -> None:
    await _mark_while_running(run, seconds)


@app.task(name="exclusive_blocking", limits=[Limit(concurrency=1)], max_retries=9)
async def exclusive_blocking(run: str, seconds: float) -> None:
    _run_marking(run, seconds)


@app.task(name="exclusive_thread", limits=[Limit(concurrency=1)], max_retries=9)
def exclusive_thread(run: str, seconds: float) -> None:
    _run_marking(run, seconds)


@app.task(name="exclusive_process", executor="process", limits=[Limit(concurrency=1)], max_retries=9)
def exclusive_process(run: str, seconds: float) -> None:
    _run_marking(run, seconds)


async def _mark_while_running(run: str, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        mark(f"{run} {os.getpid()} {time.monotonic_ns()}")
        await asyncio.sleep(0.01)


def _run_marking(run: str, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        mark(f"{run} {os.getpid()} {time.monotonic_ns()}")
        time.sleep(0.01)


@app.task(name="dumpable")
def dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE


@app.task(name="dumpable_process", executor="process")
def dumpable_process() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))


@app.task(name="part", max_retries=50, retry=Retry(give_up_on=(ValueError,)))
async def part(label: str, seconds: float = 0.0, fails: bool = False) -> str:
    mark(f"part starts {label}")
    await asyncio.sleep(seconds)
    mark(f"part ends {label}")
    if fails:
        raise ValueError(label)
    return label


# Tasks that show in which process they ran, for the tests of recycling.
leaked: list[bytes] = []


@app.task(name="where_async")
async def where_async(number: int) -> None:
    mark(f"where {number} {os.getpid()}")


@app.task(name="where_thread")
def where_thread(number: int) -> None:
    mark(f"where {number} {os.getpid()}")


@app.task(name="where_process", executor="process")
def where_process(number: int) -> None:
    mark(f"where {number} {os.getpid()}")


@app.task(name="until_told")
async def until_told(name: str) -> int:
    """Run until a file of this name exists."""
    mark(f"until_told {name} {os.getpid()}")
    while not MARKS.with_name(name).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return os.getpid()


@app.task(name="leak_thread")
def leak_thread(mib: int) -> None:
    leaked.append(b"\1" * (mib << 20))
    mark(f"leak {os.getpid()}")


@app.task(name="leak_process", executor="process")
def leak_process(mib: int) -> None:
    leaked.append(b"\1" * (mib << 20))
    mark(f"leak {os.getpid()}")
