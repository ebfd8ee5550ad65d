"""``@io_task``: a function whose call is a job."""

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
TIMEOUT = 3_600  # Seconds. IOQueue knew no limit at all; a job that hangs should not keep its slot for ever.


class IoTask(Generic[P, R]):
    """A task of a Django project: ``enqueue`` submits a job, ``run`` calls the function here and now.

    Calling the task submits a job too, as it did in IOQueue.
    """

    def __init__(self, task: Task[P, R, Any]) -> None:
        self.task = task
        self.name = task.name
        self.fn = task.fn
        self.__name__ = task.__name__
        self.__doc__ = task.__doc__
        self.__wrapped__ = task.fn

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job, as part of the transaction that the database connection is in. Return a handle on it.

        A transient job is sent after the commit. Raises ``ValueError`` for arguments that JSON cannot hold,
        ``TypeError`` for those that the function does not take.
        """
        return self._queue.enqueue(self._call(args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job from a coroutine, such as an async view."""
        return await self._queue.aenqueue(self._call(args, kwargs))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Submit a job as ``enqueue`` does. Return its id, or None for a transient one."""
        return self._queue.submit(self._call(args, kwargs))

    def send(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """The same as calling the task."""
        return self._queue.submit(self._call(args, kwargs))

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Submit a job from a coroutine, such as an async view."""
        return await self._queue.asubmit(self._call(args, kwargs))

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here and now, without a job; of an ``async def`` this gives the coroutine."""
        return self.task(*args, **kwargs)

    def using(self, **options: Any) -> IoTask[P, R]:
        """Return the same task with options for the calls made through it: ``delay``, ``run_after``, ``priority`` …"""
        if "connection" in options:
            raise ConfigError(f"task {self.name}: Django's connection is used anyway; leave connection= away")
        return IoTask(self.task.using(**options))

    @property
    def _queue(self) -> Queue:
        return cast(Queue, self.task.app)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        return self.task.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"IoTask({self.name!r})"

    @property
    def app(self) -> Queue:
        """The queue of the project."""
        return self._queue


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
    """Make a function a task: ``@io_task``, or ``@io_task(max_retries=5, dedupe=True)``.

    ``name``: by default ``<module>.<function>``. ``max_retries``: a job that keeps failing runs once more than that.
    ``dedupe``: while a job with the same arguments is pending or running, that one's id is given. ``persist=False``:
    a transient job, neither kept nor repeated. Other options are those of ``Headway.task``: ``priority``, ``limits``,
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
    """Run a task by the clock: ``@io_cron("0 3 * * *", tz="Europe/Paris")``, on a function or above ``@io_task``.

    Each tick makes one job however many workers there are. ``catch_up`` and ``overlap`` are those of ``Headway.cron``,
    other options those of ``io_task``. Raises ``BadCron`` for an expression or zone that cannot be read.
    """
    make = queue().cron(expression, tz=tz, catch_up=catch_up, overlap=overlap)

    def declare(function: Callable[..., Any] | IoTask[Any, Any]) -> IoTask[Any, Any]:
        if isinstance(function, IoTask) and options:
            raise ConfigError(f"task {function.name}: give the options of a task to @io_task")
        task: IoTask[Any, Any] = function if isinstance(function, IoTask) else io_task(**options)(function)
        make(task.task)
        return task

    return declare
