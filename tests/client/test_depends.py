"""Dependencies: which parameters they fill, how often they run, and in which order they are closed."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from headway import Context, Depends, Task
from headway.testing import Testbed

said: list[str] = []


@pytest.fixture(autouse=True)
def _silence() -> None:
    said.clear()


def plain() -> str:
    said.append("plain")
    return "plain"


async def waiting() -> str:
    await asyncio.sleep(0)
    said.append("async")
    return "async"


def generator() -> Iterator[str]:
    said.append("open generator")
    try:
        yield "generator"
    finally:
        said.append("close generator")


async def async_generator() -> AsyncIterator[str]:
    await asyncio.sleep(0)
    said.append("open async generator")
    try:
        yield "async generator"
    finally:
        await asyncio.sleep(0)
        said.append("close async generator")


def nested(inner: str = Depends(async_generator), other: str = Depends(generator)) -> Iterator[str]:
    said.append("open nested")
    yield f"nested({inner}, {other})"
    said.append("close nested")


class Settings:
    def __init__(self) -> None:
        self.name = "settings"


def about(context: Context) -> str:
    return f"{context.task}/{context.attempt}"


Run = Callable[..., Any]


@pytest.fixture(params=["async job", "thread job", "async call", "plain call"])
def run(request: pytest.FixtureRequest, headway: Testbed) -> Run:
    """Return a function that runs another with its dependencies: as a job or a call, async or not."""

    def declare(function: Callable[..., Any], name: str) -> Task[Any, Any, Any]:
        if not request.param.startswith("async"):
            return headway.app.task(name=name)(function)

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        wrapped.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return headway.app.task(name=name)(wrapped)

    def run(function: Callable[..., Any], *args: Any, name: str = "work") -> Any:
        task = declare(function, name)
        if request.param.endswith("job"):
            job = task.enqueue(*args)
            headway.drain(raise_errors=True)
            return job.result()
        answer = task(*args)
        return asyncio.run(answer) if request.param == "async call" else answer

    return run


@pytest.mark.parametrize(
    "provider, provided",
    [(plain, "plain"), (waiting, "async"), (generator, "generator"), (async_generator, "async generator")],
)
def test_any_kind_of_function_provides(run: Run, provider: Callable[..., Any], provided: str) -> None:
    def work(number: int, *, value: str = Depends(provider)) -> str:
        said.append("task")
        return f"{number} {value}"

    assert run(work, 5) == f"5 {provided}"
    assert said[1] == "task"


def test_a_class_provides_itself(run: Run) -> None:
    def work(settings: Settings = Depends(Settings)) -> str:  # noqa: B008
        return settings.name

    assert run(work) == "settings"


def test_dependencies_are_closed_in_reverse_when_the_task_has_ended(run: Run) -> None:
    def work(
        one: str = Depends(generator), two: str = Depends(async_generator), three: str = Depends(nested)
    ) -> list[str]:
        said.append("task")
        return [one, two, three]

    assert run(work) == ["generator", "async generator", "nested(async generator, generator)"]
    assert said == [
        "open generator",
        "open async generator",
        "open nested",
        "task",
        "close nested",
        "close async generator",
        "close generator",
    ]


def test_a_dependency_is_made_once_a_job_unless_told_otherwise(run: Run) -> None:
    made: list[object] = []

    def fresh() -> object:
        made.append(object())
        return made[-1]

    def holder(inner: object = Depends(fresh)) -> object:
        return inner

    def work(
        one: object = Depends(fresh),
        two: object = Depends(holder),
        three: object = Depends(fresh, cache=False),
    ) -> list[bool]:
        return [one is two, one is three]

    assert run(work) == [True, False]
    assert len(made) == 2
    assert run(work, name="again") == [True, False]
    assert len(made) == 4


def test_a_dependency_may_ask_for_the_context(run: Run) -> None:
    def work(value: str = Depends(about)) -> str:
        return value

    assert run(work) == "work/1"


def test_an_error_of_the_task_reaches_its_dependencies(run: Run) -> None:
    def careful() -> Iterator[str]:
        try:
            yield "session"
        except ValueError as error:
            said.append(f"rolled back: {error}")
            raise

    def work(session: str = Depends(careful)) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run(work)
    assert said == ["rolled back: broken"]


def test_a_dependency_cannot_swallow_the_error_of_the_task(run: Run) -> None:
    def session() -> Iterator[str]:
        try:
            yield "session"
        except ValueError:
            said.append("rolled back")
            raise
        else:
            said.append("committed")

    def careless(session: str = Depends(session)) -> Iterator[str]:
        try:
            yield session
        except ValueError:
            said.append("swallowed")

    async def careless_too(session: str = Depends(session)) -> AsyncIterator[str]:
        try:
            yield session
        except ValueError:
            said.append("swallowed too")

    def work(one: str = Depends(careless), two: str = Depends(careless_too)) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run(work)
    assert said == ["swallowed too", "swallowed", "rolled back"]


def test_a_dependency_that_fails_fails_the_attempt_and_closes_the_others(run: Run) -> None:
    def broken() -> str:
        raise OSError("no database")

    def work(one: str = Depends(generator), two: str = Depends(broken)) -> None:
        said.append("task")

    with pytest.raises(OSError, match="no database"):
        run(work)
    assert said == ["open generator", "close generator"]


def test_a_failing_cleanup_fails_the_attempt(run: Run) -> None:
    def broken() -> Iterator[str]:
        yield "value"
        raise OSError("could not commit")

    def work(value: str = Depends(broken)) -> str:
        return value

    with pytest.raises(OSError, match="could not commit"):
        run(work)


def test_plain_dependencies_of_a_thread_task_run_in_its_thread(headway: Testbed) -> None:
    def thread() -> Iterator[int]:
        yield threading.get_ident()

    @headway.app.task
    def work(provided: int = Depends(thread)) -> bool:
        return provided == threading.get_ident() != threading.main_thread().ident

    job = work.enqueue()
    headway.drain(raise_errors=True)
    assert job.result() is True


# ---------------------------------------------------------------------- calling a task here and now


def test_calling_a_task_runs_it_here_and_enqueues_nothing(headway: Testbed) -> None:
    # R2.52
    @headway.app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add(1) == 2
    assert add(a=1, b=5) == 6
    assert headway.enqueued() == []


async def test_calling_an_async_task_gives_a_coroutine(headway: Testbed) -> None:
    @headway.app.task
    async def add(a: int, b: int = 1) -> int:
        return a + b

    assert await add(1, b=2) == 3
    assert await add.fn(1) == 2


def test_a_caller_may_bring_the_dependency(headway: Testbed) -> None:
    @headway.app.task
    def work(number: int, first: str = Depends(plain), *, second: str = Depends(plain)) -> tuple[int, str, str]:
        return number, first, second

    assert work(1) == (1, "plain", "plain")
    assert work(1, "mine") == (1, "mine", "plain")
    assert work(1, first="mine", second="too") == (1, "mine", "too")
    assert said == ["plain", "plain"]
    assert work.fn(1, "a", second="b") == (1, "a", "b")


def test_a_task_called_here_gets_a_context_too(headway: Testbed) -> None:
    @headway.app.task(name="work", context=True)
    def work(context: Context, number: int) -> tuple[str, int, int]:
        context.progress(0.5)
        return context.task, context.attempt, number

    assert work(7) == ("work", 1, 7)


def test_what_a_called_task_raises_comes_out(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        work()


async def test_a_plain_task_called_on_a_loop_may_have_async_dependencies(headway: Testbed) -> None:
    @headway.app.task
    def work(value: str = Depends(async_generator)) -> str:
        return value

    assert work() == "async generator"
