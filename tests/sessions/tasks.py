"""Interactive tasks for the tests of sessions, in this process and in the workers' processes."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from headway import Context, Headway

POLICY = """
[ladder]
rungs = [{name = "fast", seconds = 3}, {name = "slow", seconds = 30}]
"""


def make_app(address: str, **settings: Any) -> Headway:
    made = Headway(address, **{"slots": 2, "reserved": 0, "grace": 0.2, "session_grace": 2.0, **settings})

    @made.task(name="echo", duration="interactive", context=True)
    async def echo(ctx: Context, prompt: str = "") -> str:
        if prompt:
            await ctx.send(prompt)
        async for message in ctx:
            if message == "bye":
                return "parted"
            if message == "size":
                message = f"{ctx.size[0]}x{ctx.size[1]}"
            await ctx.send(message)
        return "alone"

    @made.task(name="flood", duration="interactive", context=True)
    async def flood(ctx: Context, count: int = 1_000) -> int:
        for number in range(count):
            await ctx.send(b"%07d" % number * 1_000)
            ctx.progress(number / count, str(number))
        return count

    @made.task(name="deaf", duration="interactive", context=True)
    async def deaf(ctx: Context) -> None:
        await asyncio.Event().wait()

    @made.task(name="tidy", duration="interactive", context=True)
    async def tidy(ctx: Context) -> None:
        try:
            await ctx.receive()
        finally:
            await asyncio.sleep(0.5)

    @made.task(name="broken", duration="interactive", context=True)
    async def broken(ctx: Context) -> None:
        await ctx.receive()
        raise RuntimeError("no such luck")

    @made.task(name="die", duration="interactive", context=True)
    async def die(ctx: Context) -> None:
        await ctx.receive()
        os._exit(9)

    @made.task(name="work", max_retries=0)
    async def work(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @made.task(name="stay", duration="default", max_retries=0)
    async def stay(seconds: float = 60.0) -> str:
        await asyncio.sleep(seconds)
        return "stayed"

    made.terminal(["bash", "--norc", "--noprofile"], name="shell", env={"PS1": "$ ", "GREETING": "hello"})
    return made


def __getattr__(name: str) -> Any:
    """Create ``app`` for workers, with the store address of the environment."""
    if name != "app":
        raise AttributeError(name)
    return make_app(os.environ["HEADWAY_STORE"])
