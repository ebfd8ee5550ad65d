"""The app: tasks, crons, middleware and the store."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, overload

from headway.client.batch import Batch, new_batch
from headway.client.client import Client
from headway.client.codec import Signature
from headway.client.command import OUTPUT, Choices, Command, CommandSignature
from headway.client.context import Context
from headway.client.job import Job
from headway.client.job_template import check_text
from headway.client.options import TaskKeywords, TaskOptions
from headway.client.portal import Portal, blocking
from headway.client.programs.output import Output
from headway.client.settings import Settings, gather, load_settings
from headway.client.submit import FOLLOW_EVERY, Submitter
from headway.client.task import Call, ContextTaskDecorator, Task, TaskDecorator, check_interactive
from headway.core.cron import parse_cron
from headway.core.errors import BadCron, ConfigError, UnknownOption, UnknownTask
from headway.core.job import State
from headway.core.lease import Lease, Report
from headway.core.policy.document import BUILT_IN, INTERACTIVE, Policy
from headway.core.policy.enforced import PauseSet, pausing, resuming
from headway.core.suggest import did_you_mean
from headway.core.workflow import BatchId
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import change_paused, read_paused
from headway.policy_store.versions import load_policy
from headway.security.audit import PYTHON
from headway.security.audited_store import audited
from headway.stores.base import JobQuery, Stats, Store
from headway.stores.open import open_store

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

CallNext = Callable[..., Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
Signal = Callable[..., Any]

SIGNALS = ("start", "finish", "fail")
CATCH_UPS = ("skip", "last", "all")
OVERLAPS = ("skip", "allow")


@dataclass(frozen=True, slots=True)
class CronEntry:
    """The schedule of a task.

    ``catch_up`` decides about ticks that were missed while no worker ran: ``skip`` them, run the ``last``, or ``all``.
    ``overlap`` decides about a tick while the job of an earlier tick is still live: ``skip`` or ``allow``.
    """

    task: str
    expression: str
    tz: str = "UTC"
    catch_up: str = "skip"
    overlap: str = "skip"


class Headway:
    """The tasks of an application and their store.

    Pass settings by name (``store``, ``namespace``, ``slots`` …), or set them in ``HEADWAY_*`` variables or in
    ``headway.toml``. The app opens the store on first use. ``lifespan`` takes the app and returns an async context
    manager. Each worker enters that manager when it starts, and may get a mapping from it for ``Context.state``.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        middleware: Sequence[Middleware] = (),
        **settings: Any,
    ) -> None:
        self.given: dict[str, Any] = {"store": store, **settings}  # Settings that override the environment.
        self._configure()
        self.lifespan = lifespan
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        self.runs_programs = False  # Whether the app has commands or terminals.
        self.crons: dict[str, CronEntry] = {}
        self.middlewares: list[Middleware] = list(middleware)
        self.signals: dict[str, list[Signal]] = {name: [] for name in SIGNALS}
        # The worker calls this on its event loop for each outcome that the store has recorded. It must not block.
        self.on_recorded: Callable[[Lease, Report], None] | None = None
        self.portal = Portal()
        self.client = Client(self.make_store, lambda: self.settings.history)
        self.submitter = Submitter(self)

    def configure(self, **settings: Any) -> None:
        """Override settings of the app before it opens its store. The command line does this."""
        self.given |= {name: value for name, value in settings.items() if value is not None}
        self._configure()

    def _configure(self) -> None:
        self.settings: Settings = _check_release(load_settings(self.given))
        # None: the app sets no number of reserved slots, so the policy sets it.
        self.reserved_asked = self.settings.reserved if "reserved" in gather(self.given) else None
        path = self.settings.policy
        self.file_policy: Policy | None = None if path is None else load_policy(Path(path))
        self.in_force = CurrentPolicy(self.file_policy or BUILT_IN)

    @property
    def policy(self) -> Policy:
        """The policy last read from the store; before the first read, the policy file or the built-in policy."""
        return self.in_force.policy

    def make_store(self) -> Store:
        """Make an unopened store from the settings. Every worker process opens its own."""
        settings = self.settings
        return open_store(
            settings.store,
            settings.namespace,
            transient=settings.transient_store,
            timeout=settings.store_timeout,
        )

    # ------------------------------------------------------------------ declaring

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, *, context: Literal[True], **options: Unpack[TaskKeywords]) -> ContextTaskDecorator: ...
    @overload
    def task(self, *, context: Literal[False] = False, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...
    def task(self, function: Any = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Declare a function as a task: ``@app.task``, or ``@app.task(priority="low", …)``.

        Raises ``ConfigError`` for invalid options and for a name that another function has.
        """
        name = options.pop("name", None)
        chosen = _task_options(options)

        def declare(function: Callable[..., Any]) -> Task[Any, Any, Any]:
            if isinstance(function, Task):
                raise ConfigError(f"{function!r} is a task already")
            return self._add(function, name, chosen)

        return declare if function is None else declare(function)

    def command(
        self,
        argv: Sequence[str],
        *,
        name: str,
        collect: Sequence[str] = (),
        stdin: str | None = None,
        choices: Choices | None = None,
        cpu: float | None = None,
        memory: int | None = None,
        output: int = OUTPUT,
        env: Mapping[str, str] | None = None,
        artifacts: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Task[..., Output, Coroutine[Any, Any, Output]]:
        """Declare a program as a task: ``app.command(["asy", "-f", "{format}", "drawing.asy"], name="asy.render")``.

        A word in braces is a parameter, and so is ``files``. The worker starts the program without a shell.
        ``collect``: names or patterns of the output files. ``stdin``: the input file that the program reads.
        ``choices``: the allowed values of a parameter. ``cpu``: CPU seconds for each process. ``memory``: bytes for
        each process. ``output``: bytes for all output together. ``env``: variables in addition to PATH and HOME.
        ``artifacts``: a folder for output files that are too large for a result. Other options are those of a task.
        """
        made = Command(
            name=check_text(name, "the name of a task"),
            argv=argv,
            collect=collect,
            stdin=stdin,
            choices=choices or {},
            cpu=cpu,
            memory=memory,
            output=output,
            env=env or {},
            artifacts=None if artifacts is None else os.fspath(artifacts),
        )
        if options.get("executor", "auto") not in ("auto", "async") or options.get("context"):
            raise ConfigError(f"command {name}: a program has neither an executor nor a context")
        self.runs_programs = True
        run = made.function(lambda: self.settings.payload_max)
        known = self.tasks.get(name)
        if known is not None and isinstance(known.signature, CommandSignature) and known.signature.command != made:
            raise ConfigError(f"two commands want the task name {name!r}; give one of them another name=")
        return self._add(run, name, _task_options(options), CommandSignature(made, run))

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        catch_up: str = "skip",
        overlap: str = "skip",
        **options: Any,
    ) -> Callable[[Callable[..., Any] | Task[Any, Any, Any]], Task[Any, Any, Any]]:
        """Run a task on a schedule: ``@app.cron("*/5 * * * *", tz="Europe/Paris")``.

        Each tick fires once, regardless of the number of workers. Other options are those of a task.
        Raises ``BadCron`` for an invalid expression or time zone.
        """
        try:
            parse_cron(expression, tz)
        except ValueError as problem:
            raise BadCron(str(problem), expression=expression, tz=tz) from None
        for what, value, known in (("catch_up", catch_up, CATCH_UPS), ("overlap", overlap, OVERLAPS)):
            if value not in known:
                raise ConfigError(f"cron {expression!r}: {what} is {', '.join(known)}, not {value!r}")

        def declare(function: Callable[..., Any] | Task[Any, Any, Any]) -> Task[Any, Any, Any]:
            name = options.pop("name", None)
            task = function if isinstance(function, Task) else self._add(function, name, _task_options(options))
            required = [p for p in task.signature.parameters.values() if p.default is p.empty]
            if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in required):
                raise ConfigError(f"task {task.name}: a cron task must be callable without arguments")
            if not task.options.persist:
                raise ConfigError(f"task {task.name}: a cron task cannot be transient")
            self.crons[task.name] = CronEntry(task.name, expression, tz, catch_up, overlap)
            return task

        return declare

    def terminal(
        self,
        argv: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        cpu: int | None = None,
        memory: int | None = None,
        **options: Any,
    ) -> Task[[], int, Coroutine[Any, Any, int]]:
        """Declare a program as an interactive task. The session's client types into the program's terminal.

        ``env``, ``cwd``, ``cpu`` and ``memory`` are those of ``run_in_terminal``; other options are those of a task.
        The result of the task is the exit code of the program.
        """
        program = [os.fspath(part) for part in argv] if not isinstance(argv, (str, bytes)) else []
        if not program or not all(isinstance(part, str) and "\0" not in part for part in program):
            raise ConfigError(f"terminal {name}: the program is a list such as ['bash', '--norc'], not {argv!r}")
        given = {"env": env, "cwd": cwd, "cpu": cpu, "memory": memory}

        async def terminal(ctx: Context) -> int:
            from headway.client.programs.terminal import run_in_terminal  # Not importable on Windows.

            return await run_in_terminal(ctx, program, **given)  # type: ignore[arg-type]

        self.runs_programs = True
        terminal.__doc__ = f"Run {program[0]} under a terminal."
        chosen = _task_options({**options, "duration": INTERACTIVE, "context": True})
        return self._add(terminal, name, chosen)

    def middleware(self, function: Middleware) -> Middleware:
        """Wrap every job in ``async def mw(ctx, call_next)``. The first middleware added is the outermost."""
        self.middlewares.append(function)
        return function

    def on(self, signal: str) -> Callable[[F], F]:
        """Register a function that the worker calls for each job.

        ``@app.on("start")`` passes the context, ``"finish"`` also the result, ``"fail"`` also the error. The function
        may be async. The worker logs an error that it raises; the job is not affected.
        """
        if signal not in SIGNALS:
            raise ConfigError(f"signals are {', '.join(SIGNALS)}, not {signal!r}")

        def listen(function: F) -> F:
            self.signals[signal].append(function)
            return function

        return listen

    def _add(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: TaskOptions,
        signature: Signature | None = None,
    ) -> Task[Any, Any, Any]:
        if not callable(function):
            raise ConfigError(f"a task is a function, not {function!r}")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(f"{function.__qualname__} is a generator; a task returns one result")
        if name is None and not hasattr(function, "__qualname__"):
            raise ConfigError(f"{function!r} has no name of its own; give the task one with name=…")
        name = check_text(name or f"{_module_name(function)}.{function.__qualname__}", "the name of a task")
        known = self.tasks.get(name)
        if known is not None and not _same_function(known.fn, function):
            raise ConfigError(
                f"two functions want the task name {name!r}: {_where(known.fn)} and {_where(function)}; "
                "give one of them another name="
            )
        if options.duration == INTERACTIVE:
            check_interactive(name, function, options)
        task: Task[Any, Any, Any] = Task(self, function, name, options, signature=signature)
        self.tasks[name] = task
        return task

    # ------------------------------------------------------------------ submitting and reading

    async def follow_policy(self) -> None:
        """Read the store's policy, unless this process did so a moment ago."""
        await self.in_force.refresh(await self.client.store(), every=FOLLOW_EVERY)

    async def aenqueue_many(self, calls: Iterable[Call[Any]], *, connection: object | None = None) -> list[Job[Any]]:
        """Submit many jobs, a thousand per round trip. The store keeps all or none of each thousand.

        ``connection``: submit all of them inside the current transaction of this connection.
        """
        return await self.submitter.submit_many(calls, connection)

    def enqueue_many(self, calls: Iterable[Call[Any]], *, connection: object | None = None) -> list[Job[Any]]:
        """Blocking twin of ``aenqueue_many``."""
        return self.submitter.submit_many_blocking(calls, connection)

    def batch(
        self,
        name: str = "batch",
        *,
        tenant: str | None = None,
        key: str | None = None,
        parent: Batch[Any] | None = None,
    ) -> Batch[Any]:
        """Return a new batch for ``with`` or ``async with``.

        ``key``: the batch that this tenant made with the same key before, if the store still has it. ``tenant``: the
        tenant of all members, by default that of ``parent``: a batch in which this one counts as a member.
        """
        return Batch(self, new_batch(name, key, tenant, parent), parent=parent)

    def batch_of(self, batch_id: str) -> Batch[Any]:
        """Return a handle on a batch without reading the store."""
        return Batch(self, None, BatchId(batch_id))

    def job(self, job_id: str) -> Job[Any]:
        """Return a handle on a job without reading the store."""
        return Job(self, job_id)

    async def ajobs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        task: str | Task[Any, Any, Any] | None = None,
        priority: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[Job[Any]]:
        """Find jobs, newest first."""
        name = _task_name(task)
        if limit < 0:
            raise ConfigError(f"limit must be at least 0, not {limit}")
        query = JobQuery(states=read_states(status), task=name, lane=priority, tenant=tenant, limit=limit)
        found = await self.client.find(query)
        return [(self.tasks.get(job.task) or self).job(job.job_id) for job in found]

    jobs = blocking(ajobs)

    async def astats(self) -> Stats:
        """Read the counts of lanes and workers, and the totals."""
        return await self.client.stats()

    stats = blocking(astats)

    async def apause(
        self, *, lane: str | None = None, task: str | Task[Any, Any, Any] | None = None, tenant: str | None = None
    ) -> None:
        """Pause a lane, a task or a tenant until it is resumed. Without an argument, pause everything.

        Running jobs continue and new jobs wait. The pause applies to all workers at once.
        """
        await change_paused(audited(await self.client.store(), PYTHON), pausing(lane, _task_name(task), tenant))

    pause = blocking(apause)

    async def aresume(
        self, *, lane: str | None = None, task: str | Task[Any, Any, Any] | None = None, tenant: str | None = None
    ) -> None:
        """Resume a lane, a task or a tenant. Without an argument, resume everything that is paused."""
        await change_paused(audited(await self.client.store(), PYTHON), resuming(lane, _task_name(task), tenant))

    resume = blocking(aresume)

    async def apaused(self) -> PauseSet:
        """Return the paused lanes, tasks and tenants."""
        return await read_paused(await self.client.store())

    paused = blocking(apaused)

    def import_task(self, name: str) -> Task[Any, Any, Any] | None:
        """Import and return a task that is not declared yet. A plain app returns None."""
        return None

    def find_task(self, name: str) -> Task[Any, Any, Any]:
        """Return a task by name. Raises ``UnknownTask``, which suggests the nearest name."""
        task = self.tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"no task {name!r} in this app{did_you_mean(name, list(self.tasks))} (tasks: {known})")
        return task

    # ------------------------------------------------------------------ closing

    async def aclose(self) -> None:
        """Close the store connections of the running event loop."""
        await self.client.close()

    def close(self) -> None:
        """Close the store connections and the event loop of the blocking methods."""
        self.portal.run(self.client.close())
        self.portal.close()

    def __enter__(self) -> Headway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Headway:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def _portal(self) -> Portal:
        return self.portal


def _check_release(settings: Settings) -> Settings:
    """Raise ``ConfigError`` for a history beside a store that keeps ended jobs itself."""
    if settings.history is not None:
        if not settings.history.startswith(("postgresql://", "postgres://")):
            raise ConfigError("history is a database's address: postgresql://user@host/name", setting="history")
        if not settings.store.startswith(("redis", "valkey", "unix")):
            raise ConfigError(
                "history is for jobs on Redis; this store keeps ended jobs itself, as long as keep says",
                setting="history",
            )
    return settings


def _task_name(task: str | Task[Any, Any, Any] | None) -> str | None:
    return task.name if isinstance(task, Task) else task


def read_states(status: str | Sequence[str] | None) -> tuple[State, ...]:
    """Read one or several statuses. Raises ``ConfigError`` for one that does not exist."""
    names = () if status is None else (status,) if isinstance(status, str) else tuple(status)
    for name in names:
        known = [state.value for state in State]
        if name not in known:
            raise ConfigError(f"no status {name!r}{did_you_mean(name, known)} (statuses: {', '.join(known)})")
    return tuple(State(name) for name in names)


def _task_options(options: dict[str, Any]) -> TaskOptions:
    known = [field.name for field in fields(TaskOptions)]
    for name in options:
        if name not in known:
            raise UnknownOption(f"a task has no option {name!r}{did_you_mean(name, [*known, 'name'])}", option=name)
    return TaskOptions(**options)


def _module_name(function: Callable[..., Any]) -> str:
    """Return the module name under which a worker imports a function. Only the running script is ``__main__``."""
    module = function.__module__
    if module not in ("__main__", "__headway_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if module == "__main__" and spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    return Path(getattr(main, "__file__", None) or "main").stem


def _same_function(one: Any, other: Any) -> bool:
    """Return whether two functions are one, declared again by a module that was imported twice or reloaded."""
    return one is other or (_where(one) == _where(other) and one.__qualname__ == other.__qualname__)


def _where(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
