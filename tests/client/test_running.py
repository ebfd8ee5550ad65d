"""A running task: its context, its return values and exceptions, and middleware around it."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headway import Context, Discard, Headway, JobFailed, RateLimited, Retry, RetryAfter, Snooze
from headway.testing import Testbed

# ---------------------------------------------------------------------- the context


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "async"])
def test_a_task_with_context_knows_its_job(headway: Testbed, plain: bool) -> None:
    seen: list[Context] = []

    def work(context: Context, number: int) -> int:
        seen.append(context)
        context.progress(0.5, "half way")
        context.log.info("working on %d", number)
        if context.attempt == 1:
            raise ValueError("again")
        return number

    async def awork(context: Context, number: int) -> int:
        return work(context, number)

    task: Any = headway.app.task(name="work", context=True, timeout=60)(work if plain else awork)
    job = task.using(tenant="acme", trace_id="t-1").enqueue(5)
    headway.drain(advance=True)
    assert job.result() == 5
    first, second = seen
    assert (first.job_id, first.task, first.tenant, first.trace_id) == (job.id, "work", "acme", "t-1")
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.epoch < second.epoch
    assert first.cancelled is False
    assert 0 < first.budget.remaining <= 60
    assert first.budget.shrunk is False
    assert dict(first.state) == {}


def test_the_lines_of_a_job_carry_its_name(headway: Testbed, caplog: pytest.LogCaptureFixture) -> None:
    @headway.app.task(name="work", context=True)
    def work(context: Context) -> None:
        context.log.warning("look at %s", "this", extra={"more": 1})

    job = work.enqueue()
    with caplog.at_level(logging.WARNING, "headway.task"):
        headway.drain()
    (record,) = [record for record in caplog.records if record.name == "headway.task"]
    assert record.getMessage() == "look at this"
    assert record.__dict__["headway"]["job"] == job.id
    assert record.__dict__["more"] == 1


def test_a_job_without_a_trace_has_one_made_of_its_id(headway: Testbed) -> None:
    traces: list[str] = []

    @headway.app.task(context=True)
    def work(context: Context) -> None:
        traces.append(context.trace_id)

    job = work.enqueue()
    headway.drain()
    assert traces == [job.id.replace("-", "")]


# R5.29
def test_jobs_enqueued_inside_a_job_inherit_its_trace(headway: Testbed) -> None:
    traces: dict[str, str] = {}

    @headway.app.task(context=True)
    async def outer(context: Context) -> None:
        traces["outer"] = context.trace_id
        await middle.aenqueue()

    @headway.app.task(context=True)
    def middle(context: Context) -> None:
        traces["middle"] = context.trace_id
        inner.enqueue()
        inner.using(trace_id="own").enqueue()

    @headway.app.task(context=True)
    def inner(context: Context) -> None:
        traces.setdefault("inner", context.trace_id)
        traces["last"] = context.trace_id

    outer.using(trace_id="t-1").enqueue()
    headway.drain(raise_errors=True)
    assert traces == {"outer": "t-1", "middle": "t-1", "inner": "t-1", "last": "own"}
    assert outer.enqueue().record().trace_id is None  # Outside a job there is nothing to inherit.


# ---------------------------------------------------------------------- steering


def test_a_snooze_costs_no_attempt(headway: Testbed) -> None:
    calls: list[int] = []

    @headway.app.task(max_retries=0, context=True)
    def work(context: Context) -> str:
        calls.append(context.attempt)
        if len(calls) < 4:
            raise Snooze(30, "not yet") if len(calls) % 2 else RateLimited(after=30)
        return "done"

    job = work.enqueue()
    began = headway.clock()
    assert headway.drain().retried == [job]
    assert (job.status(), job.record().reason) == ("queued", "not yet")
    headway.drain(advance=True)
    assert job.result() == "done"
    assert calls == [1, 1, 1, 1]
    assert headway.clock() == began + 90_000


def test_retry_after_sets_the_wait_and_uses_an_attempt(headway: Testbed) -> None:
    @headway.app.task(max_retries=1)
    def work() -> None:
        raise RetryAfter(600, "the service is down")

    job = work.enqueue()
    headway.drain()
    assert job.record().due_at == headway.clock() + 600_000
    headway.drain(advance=True)
    info = job.record()
    assert (info.state, info.attempts, info.reason) == ("dead_letter", 2, "max_retries_exceeded")
    assert info.error is not None
    assert info.error.message == "the service is down"


def test_discard_ends_a_job_as_failed(headway: Testbed) -> None:
    @headway.app.task
    async def work() -> None:
        raise Discard("the customer left")

    job = work.enqueue()
    assert headway.drain(raise_errors=True).failed == [job]  # Steering is no error.
    assert job.status() == "failed"
    with pytest.raises(JobFailed) as caught:
        job.result()
    assert (caught.value.error.type, caught.value.error.message) == ("Discard", "the customer left")


# J12
@pytest.mark.parametrize("length", [-1, float("nan"), "soon", None])
def test_an_odd_length_is_clamped_not_believed(headway: Testbed, length: Any) -> None:
    tried = []

    @headway.app.task
    def work() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise Snooze(length)

    work.enqueue()
    assert len(headway.drain().completed) == 1


def test_the_text_of_a_header_is_a_length(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None:
        after: Any = "30"
        raise RateLimited(after)

    job = work.enqueue()
    headway.drain()
    assert job.record().due_at == headway.clock() + 30_000


@pytest.mark.parametrize("length", [1e18, float("inf")])
def test_an_endless_wait_is_a_year(headway: Testbed, length: float) -> None:
    @headway.app.task
    def work() -> None:
        raise RetryAfter(length)

    job = work.enqueue()
    headway.drain()
    assert job.record().due_at == headway.clock() + 366 * 86_400_000


# ---------------------------------------------------------------------- retries


def waits(headway: Testbed, retry: Retry | None, attempts: int) -> list[float]:
    """Return the seconds that a job that always fails waits before each further attempt."""
    moments: list[int] = []

    @headway.app.task(max_retries=attempts - 1, retry=retry)
    def work() -> None:
        moments.append(headway.clock())
        raise OSError

    work.enqueue()
    headway.drain(advance=True)
    return [(after - before) / 1_000 for before, after in itertools.pairwise(moments)]


# R2.42, R2.43
def test_failures_are_retried_after_1_2_4_and_so_on_up_to_60_seconds(headway: Testbed) -> None:
    assert waits(headway, None, 9) == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize(
    "retry, expected",
    [
        (Retry(backoff="exponential", base=0.5, cap=3), [0.5, 1, 2, 3]),
        (Retry(backoff="linear", base=10, cap=35), [10, 20, 30, 35]),
        (Retry(backoff="fixed", base=7), [7, 7, 7, 7]),
        (Retry(base=0), [0, 0, 0, 0]),
        (Retry(base=1e300, cap=1e300), [366 * 86_400] * 4),
    ],
    ids=["exponential", "linear", "fixed", "at once", "endless"],
)
def test_a_backoff_follows_its_rule(headway: Testbed, retry: Retry, expected: list[float]) -> None:
    assert waits(headway, retry, 5) == expected


def test_jitter_only_shortens_a_wait(headway: Testbed) -> None:
    found = waits(headway, Retry(backoff="fixed", base=100, cap=100, jitter=0.5), 20)
    assert all(50 <= wait <= 100 for wait in found)
    assert len(set(found)) > 10


@pytest.mark.parametrize(
    "retry, error, attempts, ending",
    [
        (Retry(on=(OSError,)), ConnectionError, 3, "dead_letter"),
        (Retry(on=(OSError,)), ValueError, 1, "failed"),
        (Retry(give_up_on=(ValueError,)), UnicodeError, 1, "failed"),
        (Retry(give_up_on=(ValueError,)), OSError, 3, "dead_letter"),
        (Retry(on=(Exception,), give_up_on=(OSError,)), ConnectionError, 1, "failed"),
        (None, Exception, 3, "dead_letter"),
    ],
)
def test_only_the_named_errors_are_retried(
    headway: Testbed, retry: Retry | None, error: type[Exception], attempts: int, ending: str
) -> None:
    @headway.app.task(max_retries=2, retry=retry)
    async def work() -> None:
        raise error("x")

    job = work.enqueue()
    drained = headway.drain(advance=True)
    assert (job.status(), drained.attempts) == (ending, attempts)
    assert drained.failed == [job]


def test_a_retry_goes_behind_what_waits_already(headway: Testbed) -> None:
    # R2.59, R5.68
    order: list[str] = []

    @headway.app.task
    def work(name: str) -> None:
        order.append(name)
        if order == ["a"]:
            raise RetryAfter(0)

    for name in "abc":
        work.enqueue(name)
    headway.drain()
    assert order == ["a", "b", "c", "a"]


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "async"])
def test_a_job_past_its_timeout_is_tried_again_with_more_time(headway: Testbed, plain: bool) -> None:
    turn = threading.Event()

    def work(context: Context) -> float:
        while context.attempt == 1 and not context.cancelled:
            turn.wait(0.001)
        return context.budget.remaining

    async def awork(context: Context) -> float:
        if context.attempt == 1:
            await asyncio.Event().wait()
        return context.budget.remaining

    task: Any = headway.app.task(context=True, timeout=0.02)(work if plain else awork)
    job = task.enqueue()
    headway.drain(advance=True)
    assert job.status() == "completed"
    assert job.record().timeout_ms == 30
    (attempt,) = job.record().history
    assert attempt.reason == "timeout"
    assert attempt.error is not None
    assert (attempt.error.type, attempt.error.message) == ("TimeoutError", "time limit (0.02 s)")


# ---------------------------------------------------------------------- odd exceptions (J8, R2.76)


def forever() -> None:
    forever()


def raises(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


ODD: dict[str, tuple[Callable[[], None], str]] = {
    "SystemExit": (raises(SystemExit(3)), "SystemExit"),
    "KeyboardInterrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    "CancelledError": (raises(asyncio.CancelledError()), "asyncio.exceptions.CancelledError"),
    "GeneratorExit": (raises(GeneratorExit()), "GeneratorExit"),
    "RecursionError": (forever, "RecursionError"),
    "MemoryError": (raises(MemoryError()), "MemoryError"),
    # No coroutine can let StopIteration out; Python makes a RuntimeError of it.
    "StopIteration": (raises(StopIteration()), "RuntimeError"),
    "StopAsyncIteration": (raises(StopAsyncIteration()), "StopAsyncIteration"),
    "ExceptionGroup": (raises(ExceptionGroup("many", [ValueError(n) for n in range(10_000)])), "ExceptionGroup"),
    "BaseException": (raises(BaseException("base")), "BaseException"),
}


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "async"])
@pytest.mark.parametrize("function, kind", ODD.values(), ids=ODD.keys())
def test_whatever_a_task_raises_is_a_failed_attempt_and_the_worker_lives(
    headway: Testbed, plain: bool, function: Callable[[], None], kind: str
) -> None:
    def work() -> None:
        function()

    async def awork() -> None:
        function()

    @headway.app.task
    def after() -> str:
        return "alive"

    task: Any = headway.app.task(max_retries=1)(work if plain else awork)
    job, other = task.enqueue(), after.enqueue()
    drained = headway.drain(advance=True)
    assert other.result() == "alive"
    info = job.record()
    assert (info.state, info.attempts, drained.attempts) == ("dead_letter", 2, 3)
    assert info.error is not None
    assert info.error.type == kind
    assert len(info.error.traceback) < 33_000


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


# R2.71
@pytest.mark.parametrize(
    "error, check",
    [
        (ValueError("x" * 1_000_000), lambda message: len(message) < 8_100 and "characters left out" in message),
        (ValueError("start" + "x" * 20_000 + "end"), lambda text: text.startswith("start") and text.endswith("end")),
        (Unspeakable(), lambda message: "could not be written" in message),
        (ValueError("a\ud800\0b"), lambda message: message == "a\\ud800\0b"),
        (ValueError(), lambda message: message == ""),
    ],
    ids=["long", "both ends", "unspeakable", "surrogate", "silent"],
)
def test_error_text_is_bounded_and_always_there(
    headway: Testbed, error: Exception, check: Callable[[str], bool]
) -> None:
    # J7
    @headway.app.task(max_retries=0)
    async def work() -> None:
        raise error

    job = work.enqueue()
    headway.drain()
    with pytest.raises(JobFailed) as caught:
        job.result()
    assert check(caught.value.error.message)
    assert caught.value.error.type.endswith(type(error).__name__)
    assert caught.value.error.traceback
    assert len(caught.value.error.traceback) < 33_000


def test_a_traceback_keeps_no_local_values(headway: Testbed) -> None:
    @headway.app.task(max_retries=0)
    def work(word: str) -> None:
        raise ValueError("wrong")

    job = work.enqueue("pass" + "word-123")
    headway.drain()
    error = job.record().error
    assert error is not None
    assert "password-123" not in error.traceback


# ---------------------------------------------------------------------- results


# R2.64
@pytest.mark.parametrize(
    "value, message",
    [
        (object(), "is a object"),
        ({1, 2}, "is a set"),
        (float("nan"), "is nan"),
        ("\ud800", "cannot be stored"),
        (lambda: 1, "is a function"),
        ("x" * 2_000_000, "more than the 1,048,576 allowed"),
    ],
    ids=["object", "set", "nan", "surrogate", "function", "large"],
)
def test_a_result_that_cannot_be_stored_does_not_run_the_task_again(headway: Testbed, value: Any, message: str) -> None:
    # J7
    ran = []

    @headway.app.task
    async def work() -> Any:
        ran.append(1)
        return value

    job = work.enqueue()
    assert headway.drain(advance=True).completed == [job]
    assert job.status() == "completed"
    assert ran == [1]
    assert message in (job.record().result_error or "")
    with pytest.raises(JobFailed, match="completed, but its result could not be stored") as caught:
        job.result()
    assert message in caught.value.error.message


def test_a_typed_result_that_json_would_change_is_not_stored_either(headway: Testbed) -> None:
    @headway.app.task
    def work() -> float | None:
        return float("nan")

    job = work.enqueue()
    headway.drain()
    with pytest.raises(JobFailed, match="holds nan"):
        job.result()


def test_a_result_that_belies_its_annotation_is_given_as_it_is(headway: Testbed) -> None:
    @headway.app.task
    def work() -> int:
        return "text"  # type: ignore[return-value]

    job = work.enqueue()
    headway.drain()
    assert job.result() == "text"  # type: ignore[comparison-overlap]


# ---------------------------------------------------------------------- around a job


@pytest.mark.parametrize("plain", [True, False], ids=["thread", "async"])
def test_middleware_wraps_jobs_like_an_onion(plain: bool) -> None:
    said: list[str] = []

    async def outer(context: Context, call_next: Callable[..., Awaitable[Any]]) -> Any:
        said.append(f"outer {context.task}")
        result = await call_next()
        said.append(f"outer got {result}")
        return result + 1

    app = Headway("memory://", middleware=[outer])

    @app.middleware
    async def inner(context: Context, call_next: Callable[..., Awaitable[Any]]) -> Any:
        said.append("inner")
        try:
            return await call_next(context)
        finally:
            said.append("inner ends")

    def work(number: int) -> int:
        said.append("task")
        return number

    async def awork(number: int) -> int:
        return work(number)

    task: Any = app.task(name="work")(work if plain else awork)
    with Testbed(app) as bed:
        job = task.enqueue(5)
        bed.drain(raise_errors=True)
        assert job.result() == 6
    assert said == ["outer work", "inner", "task", "inner ends", "outer got 5"]


def test_middleware_sees_errors_and_may_turn_them_into_results(headway: Testbed) -> None:
    seen: list[BaseException] = []

    @headway.app.middleware
    async def rescue(context: Context, call_next: Callable[..., Awaitable[Any]]) -> Any:
        try:
            return await call_next()
        except ValueError as error:
            seen.append(error)
            return "rescued"

    @headway.app.task(max_retries=0)
    def work(fatal: bool) -> str:
        raise OSError("fatal") if fatal else ValueError("mild")

    mild, fatal = work.enqueue(False), work.enqueue(True)
    headway.drain()
    assert mild.result() == "rescued"
    assert fatal.status() == "dead_letter"
    assert [str(error) for error in seen] == ["mild"]


def test_middleware_that_fails_fails_the_attempt(headway: Testbed) -> None:
    ran = []

    @headway.app.middleware
    async def broken(context: Context, call_next: Callable[..., Awaitable[Any]]) -> Any:
        if context.attempt == 1:
            raise RuntimeError("no database")
        if context.attempt == 2:
            raise Snooze(1)  # It may steer too.
        return await call_next()

    @headway.app.task(max_retries=2)
    def work() -> None:
        ran.append(1)

    job = work.enqueue()
    headway.attempts_max = 5
    with pytest.raises(RuntimeError, match="always snooze"):
        headway.drain(advance=True)
    assert job.record().history[0].error is not None
    assert ran == []


def test_a_lifespan_lives_around_the_jobs_and_gives_them_state() -> None:
    said: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Headway) -> AsyncIterator[dict[str, Any]]:
        said.append("up")
        yield {"pool": ["connection"]}
        said.append("down")

    app = Headway("memory://", lifespan=lifespan)

    @app.task(context=True)
    def plain(context: Context) -> str:
        said.append("plain")
        return str(context.state["pool"][0])

    @app.task(context=True)
    async def waiting(context: Context) -> str:
        said.append("async")
        return str(context.state["pool"][0])

    with Testbed(app) as bed:
        jobs = [plain.enqueue(), waiting.enqueue()]
        bed.drain(raise_errors=True)
        assert [job.result() for job in jobs] == ["connection", "connection"]
    assert said == ["up", "plain", "async", "down"]


def test_a_lifespan_may_give_nothing() -> None:
    @asynccontextmanager
    async def lifespan(app: Headway) -> AsyncIterator[None]:
        yield

    app = Headway("memory://", lifespan=lifespan)

    @app.task(context=True)
    def work(context: Context) -> int:
        return len(context.state)

    with Testbed(app) as bed:
        job = work.enqueue()
        bed.drain(raise_errors=True)
        assert job.result() == 0


def test_signals_tell_of_start_finish_and_failure(headway: Testbed, caplog: pytest.LogCaptureFixture) -> None:
    said: list[tuple[Any, ...]] = []

    @headway.app.on("start")
    def started(context: Context) -> None:
        said.append(("start", context.task))

    @headway.app.on("finish")
    async def finished(context: Context, result: Any) -> None:
        await asyncio.sleep(0)
        said.append(("finish", result))

    @headway.app.on("fail")
    async def failed(context: Context, error: BaseException) -> None:
        await asyncio.sleep(0)
        said.append(("fail", str(error)))

    @headway.app.on("start")
    def broken(context: Context) -> None:
        raise RuntimeError("a listener changes nothing")

    @headway.app.task(name="work", max_retries=0)
    def work(fail: bool) -> int:
        if fail:
            raise ValueError("no")
        return 7

    good = work.enqueue(False)
    headway.drain()
    bad = work.enqueue(True)
    headway.drain()
    assert (good.status(), bad.status()) == ("completed", "dead_letter")
    assert said == [("start", "work"), ("finish", 7), ("start", "work"), ("fail", "no")]
    assert "signal.failed signal=start" in caplog.text
