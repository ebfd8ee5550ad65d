"""The app whose jobs are measured."""

from __future__ import annotations

import os
import time

from headway import Headway

app = Headway()


@app.task(name="bench.noop")
async def noop(number: int, text: str) -> int:
    return number


@app.task(name="bench.stamp")
async def stamp(sent_ns: int) -> None:
    """Note how long after its submission the job began."""
    late_ns = time.time_ns() - sent_ns
    with open(os.environ["BENCH_STAMPS"], "a") as file:  # noqa: ASYNC230  (a thread would be measured with it)
        file.write(f"{late_ns}\n")
