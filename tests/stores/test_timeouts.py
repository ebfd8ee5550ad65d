"""Timeouts of calls while a store is unreachable. No job is stored twice or in part."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import ConfigError, StoreBusy, StoreUnavailable
from headway.core.job import NewJob
from headway.stores import base
from headway.stores.base import JobQuery, Store
from headway.stores.open import open_store
from headway.stores.postgres.address import PostgresAddress
from headway.stores.postgres.archive.archive import PostgresArchive
from headway.stores.postgres.connections import Connections, connect
from tests.conformance.builders import a_job
from tests.conftest import postgres
from tests.servers import HOST, Proxy, Valkey, free_port
from tests.stores.sqlite.conftest import locked

LONG = 300.0  # A limit that no test waits for.
SERVERS = ("redis://{at}", "redis+sentinel://{at}/main", "redis+cluster://{at}", "postgresql://postgres@{at}/postgres")


@contextmanager
def quicker_than(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@contextmanager
def black_hole() -> Iterator[str]:
    """Listen and never reply. Yields the address."""
    with socket.create_server((HOST, 0)) as listener:
        yield f"{HOST}:{listener.getsockname()[1]}"


async def submit_short(store: Any, job: NewJob) -> Any:
    """Submit in a thread without an event loop."""
    return await asyncio.to_thread(store.submit_blocking, [job])


async def until_submitted(store: Store, job: NewJob) -> None:
    """Repeat a submit until the store accepts it, as a caller would."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.submit([job])
            except StoreUnavailable:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("url", SERVERS)
async def test_a_refused_connection_is_given_up_long_before_the_limit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "REFUSED_WITHIN", 0.3)
    store = open_store(url.format(at=f"{HOST}:{free_port()}"), timeout=LONG)
    with quicker_than(60), pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()


@pytest.mark.parametrize("url", SERVERS)
async def test_a_server_that_never_answers_is_given_up_at_the_limit(url: str) -> None:
    with black_hole() as at:
        store = open_store(url.format(at=at), timeout=0.2)
        # Redis would be waited for 5 s otherwise.
        with quicker_than(4.5), pytest.raises(StoreUnavailable, match=r"no answer (within 0.2 s|in time)"):
            await store.open()
        await store.close()


async def test_an_archive_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.stores.postgres.archive.archive.CONNECT_WITHIN", 0.2)
    with black_hole() as at:
        archive = PostgresArchive(f"postgresql://postgres@{at}/postgres", "default")
        with pytest.raises(StoreUnavailable, match=r"no connection within 0.2 s"):
            await archive.find(JobQuery())


async def test_a_postgres_deadline_reports_the_last_problem_before_it() -> None:
    problems: list[Exception] = [ConnectionResetError("reset by peer"), TimeoutError()]

    async def work(_connection: object) -> None:
        raise problems.pop(0) if len(problems) > 1 else problems[0]

    connections = Connections(PostgresAddress(postgres().url, "the store", timeout=1.0))
    connections.open(await connect(postgres().url))
    with pytest.raises(StoreUnavailable, match="reset by peer"):
        await connections.run(work)
    await connections.close()


async def test_a_redis_server_that_stands_still_holds_a_submit_up_to_the_limit(tmp_path: Path) -> None:
    server = Valkey(tmp_path / "server", 'save ""')
    server.start()
    store = open_store(f"{server.url}?timeout=0.3")
    try:
        await store.open()
        await until_submitted(store, a_job())
        await submit_short(store, a_job())
        server.freeze()
        late, short = a_job(), a_job()
        with quicker_than(4.5), pytest.raises(StoreUnavailable, match=r"within 0.3 s"):
            await submit_short(store, short)
        with quicker_than(4.5), pytest.raises(StoreUnavailable, match=r"within 0.3 s"):
            await store.submit([late])
        with quicker_than(4.5), pytest.raises(StoreUnavailable):  # The silent connection was left.
            await store.snapshot()
        server.thaw()
        await until_submitted(store, late)
        await until_submitted(store, short)
        found = {job.job_id for job in await store.find(JobQuery())}
        assert found >= {late.job_id, short.job_id}
        assert len(found) == 4
    finally:
        await store.close()
        server.kill()


async def test_a_postgres_server_that_falls_silent_holds_a_submit_up_to_the_limit() -> None:
    # N2
    async with Proxy(postgres().port) as proxy:
        url = f"postgresql://postgres@{HOST}:{proxy.port}/postgres?timeout=1&schema=timeouts"
        direct = open_store(f"{postgres().url}?schema=timeouts", timeout=LONG)
        await direct.open()  # Makes the schema, which takes its time.
        store = open_store(url, timeout=LONG)
        await store.open()
        try:
            job, late = a_job(), a_job()
            await until_submitted(store, job)
            proxy.swallow_replies()
            with quicker_than(15), pytest.raises(StoreUnavailable, match=r"within 1 s"):  # A statement has 20 s.
                await store.submit([late])
            await until_submitted(store, late)
            assert {found.job_id for found in await direct.find(JobQuery())} >= {job.job_id, late.job_id}
        finally:
            await store.close()
            await direct.close()


async def test_a_submit_to_a_locked_file_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "headway.db"
    store = open_store(f"sqlite:///{path}?timeout=0.3", timeout=LONG)
    await store.open()
    try:
        async with locked(path) as release:
            with quicker_than(9), pytest.raises(StoreBusy, match=r"within 0.3 s"):  # The lock is waited for 10 s.
                await store.submit([a_job()])
            with quicker_than(9), pytest.raises(StoreBusy, match=r"within 0.3 s"):
                await submit_short(store, a_job())
            await release()
        kept = a_job()
        await until_submitted(store, kept)
        assert [job.job_id for job in await store.find(JobQuery())] == [kept.job_id]
    finally:
        await store.close()


async def test_a_call_after_one_that_was_given_up_does_not_wait_as_long_again() -> None:
    with black_hole() as at:
        store = open_store(f"redis://{at}?timeout=3")
        with pytest.raises(StoreUnavailable):
            await store.snapshot()
        with quicker_than(2.5), pytest.raises(StoreUnavailable):
            await store.snapshot()
        await store.close()


@pytest.mark.parametrize("url", ["redis://h?timeout={}", "postgresql://h/d?timeout={}", "sqlite:///x.db?timeout={}"])
@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "1e9", "nan"])
def test_a_limit_that_makes_no_sense_is_refused(url: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match="timeout is a number of seconds"):
        open_store(url.format(wrong))
