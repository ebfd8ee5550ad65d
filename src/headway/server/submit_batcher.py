"""Batch single submits: those that arrive while the store is busy share the next round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headway.client.submit import Submitter
from headway.client.task import Call
from headway.core.errors import StoreError
from headway.core.job import SubmitReply

BATCH = 100

_Waiting = tuple[Call[Any], asyncio.Future[SubmitReply]]


class SubmitBatcher:
    """Submits calls in batches, as if each came alone. No call waits for a batch to fill."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter
        self._waiting: list[_Waiting] = []
        self._under_way: asyncio.Task[None] | None = None

    async def submit(self, call: Call[Any]) -> SubmitReply:
        """Submit a call. Raises only the errors of its own job."""
        answer: asyncio.Future[SubmitReply] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            if not await self._together(batch):
                for one in batch:
                    await self._alone(one)

    async def _together(self, batch: Sequence[_Waiting]) -> bool:
        """Submit a batch in one step. Return False if a job was refused, so that each must be submitted alone."""
        if len(batch) == 1:
            await self._alone(batch[0])
            return True
        try:
            answers = await self._submitter.submit([call for call, _ in batch])
        except StoreError as problem:  # Submitting each alone would wait for the store again each time.
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(problem)
            return True
        except Exception:  # Even after a bug, every caller of the batch must get a reply.
            return False
        for (_, waiting), answer in zip(batch, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)
        return True

    async def _alone(self, one: _Waiting) -> None:
        call, waiting = one
        try:
            (answer,) = await self._submitter.submit([call])
        except Exception as problem:
            if not waiting.done():
                waiting.set_exception(problem)
        else:
            if not waiting.done():
                waiting.set_result(answer)
