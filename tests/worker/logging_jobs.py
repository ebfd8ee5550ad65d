"""Tasks that log as users do. Tests copy the file into the folder of a worker, which imports it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings

from headway import Context, Headway

app = Headway(heartbeat=1, dead_after=10, grace=5)
log = logging.getLogger("my.module")


def speak(where: str) -> None:
    log.info("in %s", where, extra={"order": 9})
    try:
        raise ValueError("boom\nof two lines")
    except ValueError:
        log.exception("it failed")
    warnings.warn(f"old way in {where}", stacklevel=1)
    log.debug("not shown")


@app.task(name="on_loop")
async def on_loop() -> None:
    speak("loop")


@app.task(name="in_thread")
def in_thread() -> None:
    speak("thread")


@app.task(name="in_process", executor="process")
def in_process() -> None:
    speak("process")


@app.task(name="by_context", context=True)
async def by_context(ctx: Context) -> None:
    ctx.log.info("said %d", 1, extra={"order": 9})


@app.task(name="thread_of_its_own")
def thread_of_its_own() -> None:
    def fail() -> None:
        raise RuntimeError("alone")

    thread = threading.Thread(target=fail, name="mine")
    thread.start()
    thread.join()


@app.task(name="tick")
async def tick(number: int) -> int:
    return number


@app.task(name="chatty", executor="process")
def chatty(number: int) -> int:
    log.warning("x" * 1_000)
    return number


@app.task(name="flood", executor="process")
def flood() -> int:
    sys.stdout.write("x" * (5 << 20))
    sys.stdout.flush()
    return os.getpid()
