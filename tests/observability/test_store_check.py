"""The check of a store replies in time, whatever the store does."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from headway.core.errors import StoreUnavailable
from headway.observability import store_check
from headway.observability.store_check import StoreCheck
from headway.runtime.bounded_wait import within


class StoreStub:
    """A store that replies, refuses, or hangs and cannot be cancelled."""

    def __init__(self) -> None:
        self.times = 0
        self.mode = "well"

    async def __call__(self) -> object:
        self.times += 1
        if self.mode == "refused":
            raise StoreUnavailable("refused")
        while self.mode == "hangs":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return "a snapshot"


async def test_one_answer_serves_many_questions() -> None:
    asked = StoreStub()
    check = StoreCheck(asked)
    assert await asyncio.gather(*(check.problem() for _ in range(50))) == [None] * 50
    assert asked.times == 1


async def test_a_refusal_is_told_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = StoreStub()
    asked.mode = "refused"
    check = StoreCheck(asked)
    assert await check.problem() == "the store cannot be reached"
    asked.mode = "well"
    assert await check.problem() is None
    monkeypatch.setattr(store_check, "FRESH", 0.0)
    asked.mode = "refused"
    assert await check.problem() == "the store cannot be reached"


async def test_a_store_that_hangs_is_told_in_time_and_asked_only_once() -> None:
    asked = StoreStub()
    asked.mode = "hangs"
    check = StoreCheck(asked)
    began = time.monotonic()
    for _ in range(10):
        assert await check.problem() == "the store does not answer"
    assert time.monotonic() - began < 5  # Not ten times its bound.
    assert asked.times == 1
    asked.mode = "well"
    async with asyncio.timeout(20):
        while await check.problem() is not None:  # noqa: ASYNC110  (the check itself tells)
            await asyncio.sleep(0.01)


async def test_a_call_that_cannot_be_cancelled_is_left_to_itself() -> None:
    asked = StoreStub()
    asked.mode = "hangs"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(within(0.01, asked()), 20)
    asked.mode = "well"
    assert await within(20, asked()) == "a snapshot"
