"""``@io_task`` declares a function as a task. A call of the task submits a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from headway.client.app import Headway
from headway.client.job import Job
from headway.client.options import Unique
from headway.client.task import Call, Task
from headway.core.errors import ConfigError
from headway.integrations.django.queue import Queue, queue

P = ParamSpec("P")
R = TypeVar("R")

MAX_RETRIES = 3
TIMEOUT = 3_600  # Seconds. IOQueue had no limit, but a job that hangs must not keep its slot forever.


class IoTask(Generic[P, R]):
    """A task of a Django project. ``enqueue`` submits a job, and ``run`` calls the function directly.

    Calling the task submits a job too, as in IOQueue.
    """

    def __init__(self, task: Task[P, R, Any]) -> None:
        self.task = task
        self.name = task.name
        self.fn = task.fn
        self.__name__ = task.__name__
        self.__doc__ = task.__doc__
        self.__wrapped__ = task.fn

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job in the current transaction of the database connection. Return its handle.

        A transient job is sent after the commit. Raises ``ValueError`` for arguments that JSON cannot hold, and
        ``TypeError`` for arguments that the function does not take.
        """
        return self.app.enqueue(self.task.call(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job from a coroutine, such as an async view."""
        return await self.app.aenqueue(self.task.call(*args, **kwargs))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call for a chain or a batch. ``call.enqueue()`` submits it in the current transaction."""
        return self.task.call(*args, **kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Submit a job as ``enqueue`` does. Return its id, or None for a transient job."""
        return self.app.submit(self.task.call(*args, **kwargs))

    send = __call__

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Submit a job from a coroutine, such as an async view."""
        return await self.app.asubmit(self.task.call(*args, **kwargs))

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without a job. For an ``async def``, return the coroutine."""
        return self.task(*args, **kwargs)

    def using(self, **options: Any) -> IoTask[P, R]:
        """Return the same task with options for its calls: ``delay``, ``run_after``, ``priority``, ``after`` …"""
        if "connection" in options:
            raise ConfigError(f"task {self.name}: leave out connection=; Django's own connection is always used")
        return IoTask(self.task.using(**options))

    def __repr__(self) -> str:
        return f"IoTask({self.name!r})"

    @property
    def app(self) -> Queue:
        """The queue of the project."""
        return cast(Queue, self.task.app)


@overload
def io_task(function: Callable[P, R], /) -> IoTask[P, R]: ...
@overload
def io_task(
    *,
    name: str | None = None,
    max_retries: int = MAX_RETRIES,
    dedupe: bool = False,
    persist: bool = True,
    **options: Any,
) -> Callable[[Callable[P, R]], IoTask[P, R]]: ...
def io_task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    max_retries: int = MAX_RETRIES,
    dedupe: bool = False,
    persist: bool = True,
    **options: Any,
) -> Any:
    """Declare a function as a task: ``@io_task``, or ``@io_task(max_retries=5, dedupe=True)``.

    ``name``: by default ``<module>.<function>``. ``max_retries``: attempts after the first one. ``dedupe``: while a job
    with the same arguments is pending or running, a submit returns the id of that job. ``persist=False``: jobs are
    transient, neither stored nor retried. Other options are those of ``Headway.task``: ``priority``, ``limits``,
    ``fair_by``, ``timeout``, ``retry``, ``executor`` … Raises ``ConfigError`` for a name that another function has.
    """
    if dedupe and "unique" in options:
        raise ConfigError("give dedupe=True, or unique=, not both")
    if dedupe:
        options["unique"] = Unique()
    options.setdefault("timeout", TIMEOUT)
    if persist:
        options["max_retries"] = max_retries

    def declare(function: Callable[..., Any]) -> IoTask[Any, Any]:
        app: Headway = queue()
        decorate: Any = app.task(name=name, persist=persist, **options)
        return IoTask(decorate(function))

    return declare if function is None else declare(function)


def io_cron(
    expression: str, *, tz: str = "UTC", catch_up: str = "skip", overlap: str = "skip", **options: Any
) -> Callable[[Callable[..., Any] | IoTask[Any, Any]], IoTask[Any, Any]]:
    """Run a task on a schedule: ``@io_cron("0 3 * * *", tz="Europe/Paris")``, on a function or above ``@io_task``.

    Each tick creates one job, regardless of the number of workers. ``catch_up`` and ``overlap`` are those of
    ``Headway.cron``, other options those of ``io_task``. Raises ``BadCron`` for an invalid expression or time zone.
    """
    make = queue().cron(expression, tz=tz, catch_up=catch_up, overlap=overlap)

    def declare(function: Callable[..., Any] | IoTask[Any, Any]) -> IoTask[Any, Any]:
        if isinstance(function, IoTask) and options:
            raise ConfigError(f"task {function.name}: give the options of a task to @io_task")
        task: IoTask[Any, Any] = function if isinstance(function, IoTask) else io_task(**options)(function)
        make(task.task)
        return task

    return declare
