"""A planned failover by Sentinel: the old master accepts writes for another ten seconds and loses them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.job import JobId
from headway.integrations.celery.ledger import library
from headway.integrations.celery.ledger_client import LedgerClient
from headway.stores.redis.address import read_redis_address
from headway.stores.redis.connection import Endpoint
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job
from tests.servers import Sentinels, wait_for

pytestmark = pytest.mark.slow
OpenUrl = Callable[..., Awaitable[RedisStore]]


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    made = Sentinels(tmp_path / "servers")
    made.start()
    yield made
    made.stop()


class FailoverLog:
    """The accepted jobs with their times, and when the store learned of the start and the end of the failover."""

    def __init__(self, store: RedisStore) -> None:
        self.accepted: dict[JobId, float] = {}
        self.held = self.switched = float("inf")
        link = store._client
        pause, switch = link.pause, link.switch

        def note_hold() -> None:
            self.held = min(self.held, time.monotonic())
            pause()

        def note_switch(address: Endpoint) -> None:
            switch(address)
            self.switched = min(self.switched, time.monotonic())

        link.pause, link.switch = note_hold, note_switch  # type: ignore[method-assign]


def submit_from_a_thread(store: RedisStore, log: FailoverLog, stop: threading.Event) -> None:
    """Submit by the quick way for code without an event loop. Skips a submit while that way is closed."""
    while not stop.is_set():
        job = a_job()
        asked = time.monotonic()
        if store.submit_blocking([job]) is not None:
            log.accepted[job.job_id] = asked
        time.sleep(0.002)


async def submit_from_a_loop(store: RedisStore, log: FailoverLog, stop: threading.Event) -> None:
    while not stop.is_set():
        job = a_job()
        asked = time.monotonic()
        try:
            await store.submit([job])
        except StoreUnavailable:
            continue
        log.accepted[job.job_id] = asked
        await asyncio.sleep(0.002)


async def test_a_planned_failover_loses_nothing_that_was_accepted_after_the_client_heard_of_it(
    sentinels: Sentinels, open_url: OpenUrl
) -> None:
    # R5: all servers are healthy, and the old master goes on taking writes until it is demoted.
    store = await open_url(sentinels.url)
    log, stop = FailoverLog(store), threading.Event()
    thread = threading.Thread(target=submit_from_a_thread, args=(store, log, stop))
    thread.start()
    loop = asyncio.create_task(submit_from_a_loop(store, log, stop))
    try:
        async with asyncio.timeout(60):
            while len(log.accepted) < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            before = len(log.accepted)
            assert sentinels.sentinels[1].ask("SENTINEL", "FAILOVER", sentinels.MASTER) == b"+OK\r\n"
            while sum(at > log.switched for at in log.accepted.values()) < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        stop.set()
        await loop
        await asyncio.to_thread(thread.join)
    assert len(log.accepted) > before
    assert log.held < log.switched
    assert store._client.connection is not None
    assert store._client.connection.address.port == sentinels.replica.port
    found = await store.get(list(log.accepted))
    lost = [job_id for job_id, job in zip(log.accepted, found, strict=True) if job is None]
    # Sentinels promote the replica a tenth of a second after they say that they will, at the earliest: what is lost
    # was sent by a client that had not yet heard of it.
    assert [job_id for job_id in lost if log.accepted[job_id] > log.held] == []


async def test_a_failover_that_a_client_has_not_heard_of_is_noticed_by_asking(
    sentinels: Sentinels, open_url: OpenUrl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headway.stores.redis.sentinel.Sentinel._on_message", lambda *_: None)
    store = await open_url(sentinels.url)
    sentinels.sentinels[2].ask("SENTINEL", "FAILOVER", sentinels.MASTER)
    async with asyncio.timeout(60):
        while "store.switched" not in caplog.text:
            with contextlib.suppress(StoreUnavailable):
                await store.submit([a_job()])
            await asyncio.sleep(0.02)
    job = a_job()
    await store.submit([job])
    assert [found.job_id for found in await store.get([job.job_id]) if found] == [job.job_id]


def test_code_without_a_loop_follows_a_planned_failover(sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.integrations.celery.ledger_client.MASTER_CHECK", 0.0)
    link = LedgerClient(read_redis_address(sentinels.url), library(), "known", lambda *_: None)
    link.ask("SET", "probe", "1")
    sentinels.sentinels[0].ask("SENTINEL", "FAILOVER", sentinels.MASTER)

    def said_by_both() -> bool:
        return all(str(sentinels.replica.port).encode() in each.ask(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels.MASTER) for each in sentinels.sentinels)  # fmt: skip

    wait_for(said_by_both, "an agreement on the new master")
    link.ask("SET", "probe", "2")
    assert b"2" in sentinels.replica.ask("GET", "probe")
    link.close()
