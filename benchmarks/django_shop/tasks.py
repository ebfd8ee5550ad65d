"""Tasks that do nothing, so that only the queue is measured."""

from __future__ import annotations

from headway.integrations.django import io_task


@io_task
async def noop(number: int, text: str) -> int:
    return number


@io_task
def thread_noop(number: int, text: str) -> int:
    return number
