"""An outage of the store is logged once, and its end once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headway.core.errors import StoreCorrupt, StoreUnavailable
from headway.core.log_event import LogEvent
from headway.maintenance.loop import every
from headway.observability.logs import JsonFormatter
from headway.observability.outage import Outage

log = logging.getLogger("headway.worker")


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg.code for record in caplog.records if isinstance(record.msg, LogEvent)]


def test_however_many_calls_fail_the_log_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headway.worker")
    outage = Outage(log)
    for _ in range(50):
        outage.failed("exchange", StoreUnavailable("refused"), retry_in=0.1)
        outage.failed("reaper", StoreUnavailable("refused"))
    outage.succeeded("pruner")  # It had not failed.
    outage.succeeded("exchange")
    assert codes(caplog) == ["store.unavailable"]
    first = caplog.records[0].msg
    assert isinstance(first, LogEvent)
    assert first.facts == {"during": "exchange", "retry_in": 0.1, "error": "refused"}
    assert first == "store.unavailable during=exchange retry_in=0.1 error=refused"
    outage.succeeded("reaper")
    assert codes(caplog) == ["store.unavailable", "store.recovered"]
    outage.failed("exchange", StoreUnavailable("refused"))
    assert codes(caplog)[2:] == ["store.unavailable"]


async def test_a_chore_is_named_and_repeats_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headway.worker")
    gone, torn = StoreUnavailable("gone"), StoreCorrupt("torn")
    problems: list[Exception | None] = [gone, gone, gone, None, torn, torn, torn, None]
    done = asyncio.Event()

    async def chore() -> float:
        if not problems:
            done.set()
        elif (problem := problems.pop(0)) is not None:
            raise problem
        return 0.0

    doing = asyncio.create_task(every(0.001, chore, name="reaper"))
    await asyncio.wait_for(done.wait(), 20)
    doing.cancel()
    assert codes(caplog) == ["store.unavailable", "store.recovered", "maintenance.failed"]
    assert caplog.records[2].getMessage() == "maintenance.failed chore=reaper error=torn"


async def test_a_chore_that_fails_for_an_unknown_reason_says_which_and_when_it_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = asyncio.Event()

    async def chore() -> None:
        failed.set()
        raise ZeroDivisionError("oh")

    doing = asyncio.create_task(every(1, chore, name="pruner"))
    await asyncio.wait_for(failed.wait(), 20)
    await asyncio.sleep(0)
    doing.cancel()
    (record,) = caplog.records
    assert record.getMessage() == "maintenance.failed chore=pruner retry_in=10.0 error=oh"
    assert record.exc_info is not None


def test_facts_are_members_of_the_line() -> None:
    record = logging.LogRecord("headway.worker", logging.WARNING, "f", 1, LogEvent("a.b", one=1, none=None), (), None)
    line = JsonFormatter().format(record)
    assert '"event": "a.b"' in line
    assert '"one": 1' in line
    assert "none" not in line
