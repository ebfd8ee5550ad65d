"""The same tasks without Django, for ``headway worker``. The store comes from ``HEADWAY_STORE``."""

from __future__ import annotations

import asyncio
import sys

from headway import Headway

app = Headway()


@app.task
async def noop(number: int, text: str) -> int:
    return number


@app.task
def thread_noop(number: int, text: str) -> int:
    return number


async def _fill(task: str, count: int) -> None:
    async with app:
        await app.aenqueue_many(app.tasks[f"{__spec__.name}.{task}"].call(n, "x" * 100) for n in range(count))


if __name__ == "__main__":
    asyncio.run(_fill(sys.argv[1], int(sys.argv[2])))
