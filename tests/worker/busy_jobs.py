"""Tasks that do not stop. Tests copy the file into the folder of a worker, which imports it."""

from __future__ import annotations

import contextlib
import time

from headway import Context, Headway

app = Headway(slots=4, reserved=0, heartbeat=1, dead_after=5, grace=0.2, hard_grace=0.5)


@app.task(name="spin", duration="fast", executor="process", max_retries=0)
def spin() -> None:
    while True:
        pass


@app.task(name="deaf", duration="default", executor="process", max_retries=0)
def deaf() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


@app.task(name="aware", duration="default", executor="process", context=True, on_stop="partial", max_retries=0)
def aware(ctx: Context) -> str:
    while not ctx.budget.shrunk:
        time.sleep(0.01)
        ctx.partial("not yet")
    left = ctx.budget.remaining
    ctx.partial(f"{left:.0f} s left")
    while True:
        time.sleep(1)


@app.task(name="thread", duration="default", context=True, on_stop="partial", max_retries=0)
def thread(ctx: Context) -> str:
    while ctx.budget.remaining and not ctx.cancelled:
        time.sleep(0.01)
    return "as far as it came"


@app.task(name="deaf_thread", duration="fast", max_retries=0)
def deaf_thread() -> None:
    time.sleep(60)


@app.task(name="fill", duration="slow", max_retries=0)
async def fill() -> None: ...
