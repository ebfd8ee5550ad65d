"""The handle of a job: every verb has a blocking and an async form."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headway import (
    Context,
    Discard,
    Event,
    Headway,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    State,
    Task,
    Unique,
    Worker,
)
from headway.core.errors import IllegalMove, ResultTimeout
from headway.testing import Testbed
from tests.conftest import ADDRESSES

UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"


def verbs(kind: type) -> list[str]:
    public = {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
    return sorted(name for name in public if f"a{name}" in public)


@pytest.mark.parametrize(
    "kind, expected",
    [
        (Job, {"cancel", "events", "info", "result", "retry", "status"}),
        (Headway, {"close", "enqueue_many", "jobs", "stats"}),
        (Task, {"enqueue"}),
        (Testbed, {"drain", "tick"}),
    ],
)
def test_every_blocking_verb_has_an_async_twin_with_the_same_signature(kind: type, expected: set[str]) -> None:
    assert expected <= set(verbs(kind))
    for name in verbs(kind):
        plain, twin = getattr(kind, name), getattr(kind, f"a{name}")
        assert list(parameters(plain)) == list(parameters(twin)), name
        assert parameters(plain) == parameters(twin), name
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name
        assert not inspect.iscoroutinefunction(plain), name


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_no_async_verb_lacks_its_blocking_twin() -> None:
    for kind in (Job, Headway, Task):
        functions = {name: value for name, value in vars(kind).items() if inspect.isfunction(value)}
        for name, function in functions.items():
            waits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
            if waits and not name.startswith("_") and name != "follow_policy":
                assert name[0] == "a", name
                assert name[1:] in functions, name


def test_a_handle_costs_no_look_at_the_store_until_it_is_used(headway: Testbed) -> None:
    job = headway.app.job(UNKNOWN_ID)
    assert job.id == UNKNOWN_ID
    assert job == headway.app.job(UNKNOWN_ID)
    assert {job: 1}[headway.app.job(UNKNOWN_ID)] == 1
    assert job != UNKNOWN_ID
    for verb in (job.status, job.info, job.result, job.cancel, job.retry, lambda: list(job.events())):
        with pytest.raises(JobNotFound, match=UNKNOWN_ID):
            verb()


async def test_the_async_verbs_find_nothing_where_there_is_nothing(headway: Testbed) -> None:
    job = headway.app.job(UNKNOWN_ID)
    for verb in (job.astatus, job.ainfo, job.aresult, job.acancel, job.aretry):
        with pytest.raises(LookupError):
            await verb()
    with pytest.raises(JobNotFound):
        [event async for event in job.aevents()]


def test_a_result_that_is_late_is_a_timeout_and_the_job_goes_on(headway: Testbed) -> None:
    @headway.app.task
    def work() -> int:
        return 1

    job = work.enqueue()
    for timeout in (0.01, timedelta(milliseconds=10)):
        with pytest.raises(TimeoutError, match="has not ended"):
            job.result(timeout=timeout)
    headway.drain()
    assert job.result(timeout=0) == 1


def test_a_failed_job_tells_its_error(headway: Testbed) -> None:
    @headway.app.task(max_retries=1)
    def work() -> None:
        raise LookupError("no such thing")

    job = work.enqueue()
    headway.drain(advance=True)
    assert job.status() == "dead_letter"
    with pytest.raises(JobFailed, match="dead_letter after 2 attempts: LookupError: no such thing") as caught:
        job.result()
    error = caught.value.error
    assert (error.type, error.message) == ("LookupError", "no such thing")
    assert "in work" in error.traceback
    assert 'raise LookupError("no such thing")' in error.traceback


def test_a_queued_job_is_cancelled_at_once(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    for job in (work.enqueue(), work.using(delay=60).enqueue()):
        assert job.cancel() is State.CANCELLED
        assert job.cancel() is State.CANCELLED  # Again changes nothing.
        with pytest.raises(JobCancelled):
            job.result()
    assert headway.drain(advance=True).attempts == 0


async def test_the_async_verbs_cancel_and_retry(headway: Testbed) -> None:
    @headway.app.task
    def work() -> int:
        return 3

    job = await work.aenqueue()
    assert await job.acancel() == "cancelled"
    with pytest.raises(JobCancelled):
        await job.aresult()
    assert await job.aretry() == "queued"
    await headway.adrain()
    assert await job.astatus() == "completed"
    assert await job.aresult() == 3
    assert (await job.arecord()).attempts == 1


def test_a_job_that_has_ended_cannot_be_cancelled(headway: Testbed) -> None:
    @headway.app.task
    def work(fail: bool) -> None:
        if fail:
            raise Discard("no use")

    good, bad = work.enqueue(False), work.enqueue(True)
    headway.drain()
    for job in (good, bad):
        with pytest.raises(IllegalMove, match=f"is {job.status().value} already"):
            job.cancel()


@pytest.mark.parametrize("ending", ["failed", "cancelled", "dead_letter"])
def test_a_job_is_retried_from_every_ending_but_completed(headway: Testbed, ending: str) -> None:
    broken = True

    @headway.app.task(max_retries=0)
    def work(discard: bool) -> str:
        if broken and discard:
            raise Discard
        if broken:
            raise ValueError
        return "mended"

    job = work.enqueue(ending == "failed")
    if ending == "cancelled":
        job.cancel()
    headway.drain()
    assert job.status() == ending
    broken = False
    assert job.retry() is State.QUEUED
    info = job.record()
    assert (info.attempts, info.crashes, info.error, info.reason) == (0, 0, None, None)
    headway.drain()
    assert job.result() == "mended"
    with pytest.raises(IllegalMove, match="completed and cannot be retried"):
        job.retry()


def test_a_job_is_not_retried_beside_another_with_its_unique_key(headway: Testbed) -> None:
    @headway.app.task(unique=Unique())
    def work() -> None: ...

    old = work.enqueue()
    old.cancel()
    new = work.enqueue()
    assert new != old
    with pytest.raises(IllegalMove, match="another live job has its unique key"):
        old.retry()


def test_info_holds_what_the_store_knows(headway: Testbed) -> None:
    @headway.app.task(name="work", priority="low")
    def work(number: int) -> int:
        return number

    job = work.using(tenant="acme", trace_id="t-1").enqueue(5)
    queued = job.record()
    assert (queued.task, queued.lane, queued.tenant, queued.trace_id) == ("work", "low", "acme", "t-1")
    assert (queued.state, queued.attempts, queued.submitted_at) == (State.QUEUED, 0, headway.clock())
    headway.clock.advance(3)
    headway.drain()
    done = job.record()
    assert (done.state, done.attempts, done.started_at, done.finished_at) == (
        State.COMPLETED,
        1,
        headway.clock(),
        headway.clock(),
    )


def test_events_tell_a_finished_story(headway: Testbed) -> None:
    @headway.app.task(max_retries=1, context=True)
    def work(context: Context) -> None:
        if context.attempt == 1:
            raise ValueError("once")

    job = work.enqueue()
    headway.drain(advance=True)
    events = list(job.events())
    assert [event.kind for event in events] == ["queued", "started", "retried", "started", "finished"]
    assert events[2].data["message"] == "once"
    assert events[-1].data["status"] == "completed"
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert {event.job_id for event in events} == {job.id}


async def test_events_arrive_while_they_happen(headway: Testbed) -> None:
    @headway.app.task
    async def work() -> None: ...

    job = await work.aenqueue()
    kinds = []
    async for event in job.aevents():
        kinds.append(event.kind)
        if event.kind == "queued":
            await headway.adrain()
    assert [kind for kind in kinds if kind != "estimate"] == ["queued", "started", "finished"]


async def test_events_of_a_waiting_job_say_when_it_is_expected_to_start(headway: Testbed) -> None:
    @headway.app.task
    async def work() -> None: ...

    ahead, job = await work.aenqueue(), await work.aenqueue()
    seen: list[Event] = []
    async for event in job.aevents():
        seen.append(event)
        if event.kind == "estimate" and event.data["position"] == 1:
            await ahead.acancel()  # The next estimate comes without an event of the job itself.
        elif event.kind == "estimate":
            await headway.adrain()
    assert [event.kind for event in seen] == ["queued", "estimate", "estimate", "started", "finished"]
    assert [event.data["position"] for event in seen[1:3]] == [1, 0]
    assert seen[1].data.keys() == {"position", "p50", "p90", "basis"}
    assert {event.job_id for event in seen} == {job.id}


def test_leaving_the_events_early_is_fine(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    for event in work.enqueue().events():
        assert event.kind == "queued"
        break


# R2.15, R2.45
def test_a_transient_job_runs_once_and_keeps_nothing(headway: Testbed) -> None:
    from headway import NotStored

    ran = []

    @headway.app.task(persist=False)
    async def notify(number: int) -> None:
        ran.append(number)
        raise ValueError("lost")

    job = notify.enqueue(1)
    for verb in (job.status, job.info, job.result, job.cancel, job.retry, lambda: list(job.events())):
        with pytest.raises(NotStored, match="transient"):
            verb()
    drained = headway.drain(advance=True)
    assert ran == [1]
    assert drained.attempts == 1
    assert headway.app.jobs() == []


async def test_who_waits_for_no_time_is_told_of_a_job_that_has_ended(store_name: str, tmp_path: Path) -> None:
    app = Headway(ADDRESSES[store_name](tmp_path))

    @app.task(name="one")
    async def one() -> int:
        return 1

    async with app:
        job = await one.aenqueue()
        with pytest.raises(ResultTimeout):
            await job.aresult(timeout=0)
        async with Worker(app):
            assert await job.aresult(timeout=20) == 1
        assert await job.aresult(timeout=0) == 1
