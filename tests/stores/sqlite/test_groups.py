"""Group commits: waiting calls are written together, and each succeeds or fails alone."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import apsw
import pytest

from headway.core.errors import IdempotencyConflict, StoreError
from headway.core.job import ClassKey, NewJob, State, SubmitReply
from headway.stores.base import JobQuery
from headway.stores.sqlite.database import Database
from headway.stores.sqlite.notifier import PipeNotifier
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, register, state_of, submit, submit_one
from tests.stores.sqlite.conftest import OpenFile, locked


@pytest.fixture
def commits() -> Iterator[list[apsw.Connection]]:
    """Return a list with one entry for each commit from now on, on any connection."""
    made: list[apsw.Connection] = []

    def hook(connection: apsw.Connection) -> None:
        def committed() -> bool:
            made.append(connection)
            return False

        connection.set_commit_hook(committed)

    apsw.connection_hooks.append(hook)
    yield made
    apsw.connection_hooks.remove(hook)


async def test_concurrent_submits_share_few_transactions(
    commits: list[apsw.Connection], open_file: OpenFile, path: Path
) -> None:
    store = await open_file(path)
    commits.clear()
    jobs = [a_job() for _ in range(300)]
    await asyncio.gather(*(store.submit([job]) for job in jobs))
    assert 1 <= len(commits) <= 30
    assert len(await store.find(JobQuery(limit=1_000))) == 300


async def test_a_single_call_is_one_transaction(
    commits: list[apsw.Connection], open_file: OpenFile, path: Path
) -> None:
    store = await open_file(path)
    commits.clear()
    await store.submit([a_job() for _ in range(100)])
    assert len(commits) == 1


async def test_a_refused_call_does_not_undo_its_neighbours(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    known = await submit_one(store, a_job(idempotency_key="k"))
    good = [a_job() for _ in range(20)]
    calls = []
    for number, job in enumerate(good):
        calls.append(store.submit([job]))
        # Its first job has a lane of its own, so that a class is made and has to be unmade.
        calls.append(store.submit([a_job(lane=f"lane-{number}"), a_job(idempotency_key="k", payload=b"other")]))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, list) for answer in answers[::2])
    assert all(isinstance(answer, IdempotencyConflict) for answer in answers[1::2])
    assert {job.job_id for job in await store.find(JobQuery())} == {known, *(job.job_id for job in good)}
    assert {view.key for view in (await store.snapshot()).classes} == {ClassKey("medium")}
    await submit(store, a_job(lane="lane-3"))
    assert ClassKey("lane-3") in {view.key for view in (await store.snapshot()).classes}


async def test_a_call_that_breaks_does_not_undo_its_neighbours(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    good = [a_job() for _ in range(10)]
    bad = a_job()._replace(max_retries="many" * 2, payload=None)  # type: ignore[arg-type]
    calls = [store.submit([job]) for job in good]
    calls.insert(5, store.submit([bad]))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(5), StoreError)
    assert all(isinstance(answer, list) for answer in answers)
    assert len(await store.find(JobQuery())) == 10


async def test_wake_ups_of_a_refused_call_are_not_sent(open_file: OpenFile, path: Path, clock: ManualClock) -> None:
    store = await open_file(path)
    await submit_one(store, a_job(idempotency_key="k"))
    subscription = store.subscribe("watch.test")
    try:
        with pytest.raises(IdempotencyConflict):
            await store.submit([a_job(), a_job(idempotency_key="k", payload=b"other")])
        assert await subscription.wait(0.03) is None
    finally:
        subscription.close()


async def test_a_call_that_was_given_up_is_done_whole_or_not_begun(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    job = a_job()
    call = asyncio.ensure_future(store.submit([job]))
    await asyncio.sleep(0)
    call.cancel()
    await register(store)  # Behind the submit in the same line.
    [found] = await store.get([job.job_id])
    assert found is None or found.state is State.QUEUED


async def test_a_store_that_is_closed_says_so(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.submit([a_job()])
    await store.open()
    await submit_one(store)


async def test_threads_without_a_loop_submit_in_the_same_groups(
    commits: list[apsw.Connection], open_file: OpenFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_file(path)
    queued: list[object] = []
    put = Database._put

    def count_and_put(*args: Any) -> None:
        put(*args)
        queued.append(args)

    await submit_one(store, a_job(idempotency_key="k"))
    commits.clear()
    monkeypatch.setattr(Database, "_put", count_and_put)
    batches = [[a_job() for _ in range(10)] for _ in range(20)]
    batches.append([a_job(idempotency_key="k", payload=b"[2]")])
    begun = Barrier(len(batches) + 1)

    def submit_it(batch: list[NewJob]) -> list[SubmitReply] | None:
        begun.wait()
        return store.submit_blocking(batch)

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(batches)) as threads:
        async with locked(path) as release:  # So all of them wait at once.
            calls = [loop.run_in_executor(threads, submit_it, batch) for batch in batches]
            await asyncio.to_thread(begun.wait)
            async with asyncio.timeout(30):
                while len(queued) < len(batches):  # noqa: ASYNC110 - threads fill it
                    await asyncio.sleep(0.002)
            await release()
            *kept, refused = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(batch, list) for batch in kept)
    assert isinstance(refused, IdempotencyConflict)
    assert 1 <= len(commits) <= 10
    assert len(await store.find(JobQuery(limit=1_000))) == 201


async def test_a_thread_is_told_that_the_store_was_closed(open_file: OpenFile, path: Path) -> None:
    """It must never wait for a reply that will not come."""
    store = await open_file(path)
    going = [asyncio.to_thread(store.submit_blocking, [a_job()]) for _ in range(8)]
    answers = asyncio.gather(*going, return_exceptions=True)
    await store.close()
    async with asyncio.timeout(30):
        for answer in await answers:
            assert isinstance(answer, (list, StoreError))
    with pytest.raises(StoreError, match="not open"):
        store.submit_blocking([a_job()])


async def test_a_wake_up_that_fails_neither_fails_its_submit_nor_ends_the_writer(
    open_file: OpenFile, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W17: a process without free descriptors cannot read the wake folder."""
    store = await open_file(path)
    subscription = store.subscribe("watch.test")

    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", refuse)
        job_id = await submit_one(store)
        await store.cancel([job_id])
    assert await state_of(store, job_id) is State.CANCELLED
    with monkeypatch.context() as patch:
        patch.setattr(PipeNotifier, "notify_watchers", refuse)
        job_id = await submit_one(store)
        async with asyncio.timeout(30):
            await store.cancel([job_id])
    assert "store.after_commit_failed" in caplog.text
    assert await state_of(store, job_id) is State.CANCELLED
    await store.cancel([await submit_one(store)])
    assert await subscription.wait(10) is not None
    subscription.close()
