"""A task: a named function that can be run as a job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from headway.client.codec import Signature, has_inputs, read_payload, result_type
from headway.client.context import Context, current, inline_lease
from headway.client.invoke import invoke_async, invoke_plain, run_on_loop
from headway.client.job import Job
from headway.client.job_template import JobTemplate, check_on_stop, check_parameters
from headway.client.links import Link, OnFailure, Reference, merge_links, place_references, read_links
from headway.client.options import CallKeywords, CallOptions, Limit, Seconds, TaskOptions, check_kinds
from headway.core.errors import ConfigError, PayloadError, UnknownOption
from headway.core.job import NewJob, SubmitReply
from headway.core.policy.document import INTERACTIVE, TENANT, LimitRule
from headway.core.suggest import did_you_mean
from headway.core.worker import EXECUTORS
from headway.observability.redaction import redact

if TYPE_CHECKING:
    from headway.client.app import Headway
    from headway.client.batch import Batch

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C")

EXECUTOR_OPTIONS = ("auto", *EXECUTORS)


class Call(NamedTuple, Generic[R]):
    """A call of a task that has not been submitted yet."""

    task: Task[Any, R, Any]
    new: NewJob
    values: dict[str, Any] | None  # The arguments by name, or None: decode them from the payload.
    terms: JobTemplate
    links: tuple[Link, ...] = ()  # What the call waits for. ``{"$out": n}`` in its arguments is the n-th of them.

    def job(self) -> NewJob:
        """Return the job, built anew if the policy in force has changed since the call was made."""
        terms = self.task.terms
        if terms.problem is not None:
            raise ConfigError(terms.problem)
        if terms is self.terms:
            return self.new
        return self._new_job(terms)

    def handle(self, reply: SubmitReply) -> Job[R]:
        """Return a handle on the job that the store returned for this call."""
        job_id, deduplicated = reply
        task = self.task
        return Job(task.app, job_id, kind=task.result_kind, deduplicated=deduplicated, persist=self.new.persist)

    @property
    def out(self) -> R:
        """The result that this call will have, as an argument of another call, which then waits for this one."""
        return cast("R", Reference(self))

    def then(self, task: Task[Concatenate[R, Q], S, Any], /, *args: Q.args, **kwargs: Q.kwargs) -> Call[S]:
        """Return a call of another task that waits for this one and takes its result as the first argument."""
        check_task("then", task)
        return task.call(self.out, *args, **kwargs)

    def after(
        self, *sources: Call[Any] | Job[Any] | Batch[Any], on_failure: OnFailure = "cancel"
    ) -> Call[R]:  # fmt: skip
        """Return this call, waiting for other calls, jobs or batches too.

        ``on_failure`` decides what happens if one of them ends without completing: ``cancel`` this call, ``run`` it
        all the same, or ``hold`` it until the source is retried.
        """
        return self._replace(links=merge_links(self.links, read_links(sources, on_failure)))

    def enqueue(self) -> Job[R]:
        """Submit this call and the calls that it waits for, all or none. Blocks until the store has them."""
        return self.task.app.submitter.submit_graph_blocking((self,))[-1]

    async def aenqueue(self) -> Job[R]:
        """Submit this call and the calls that it waits for, all or none."""
        return (await self.task.app.submitter.submit_graph((self,)))[-1]

    def inherit(self, lane: str, tenant: str | None) -> Call[R]:
        """Return this call in the lane and with the tenant of the call before it, unless it has its own."""
        asked: CallKeywords = {}
        if lane != self.new.lane and not self.terms.chose_lane:
            asked["priority"] = lane
        if tenant is not None and self.new.tenant is None:
            asked["tenant"] = tenant
        if not asked:
            return self
        task = self.task.using(**asked)
        return self._replace(task=task, new=self._new_job(task.terms), terms=task.terms)

    def _new_job(self, terms: JobTemplate) -> NewJob:
        payload = self.new.payload
        if has_inputs(payload):
            return terms.new_job(self.values or {}, payload)._replace(job_id=self.new.job_id)
        values = self.task.signature.decode(payload)[1] if self.values is None else self.values
        return terms.new_job(values)._replace(job_id=self.new.job_id)


# Methods of other queues, and what to write instead.
_OPTION_HINTS = {
    "delay": "write {task}.enqueue(…)",
    "delay_on_commit": "write {task}.using(connection=…).enqueue(…) to submit in your transaction",
    "apply_async": "write {task}.using(delay=10, priority='high').enqueue(…)",
    "apply": "call {task}(…) to run the function here and now",
    "s": "write {task}.call(…) for app.enqueue_many",
    "si": "write {task}.call(…) for app.enqueue_many",
    "send": "write {task}.enqueue(…)",
    "send_with_options": "write {task}.using(delay=10).enqueue(…)",
    "schedule": "write {task}.using(delay=10).enqueue(…)",
    "map": "write app.enqueue_many({task}.call(value) for value in …)",
    "starmap": "write app.enqueue_many({task}.call(*values) for values in …)",
    "retry": "raise RetryAfter(seconds) inside the task",
}

_as_call = partial(tuple.__new__, Call)


class Task(Generic[P, R, C]):
    """A named function with options. ``enqueue`` submits a call of the function as a job.

    Calling the task runs the function in the caller, with dependencies resolved. ``fn`` is the bare function.
    """

    def __init__(
        self,
        app: Headway,
        function: Callable[..., Any],
        name: str,
        options: TaskOptions,
        *,
        signature: Signature | None = None,
    ) -> None:
        self.app = app
        self.fn = function
        self.name = name
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = signature or Signature(name, function, context=options.context)
        self.result_kind = result_type(function)
        self.executor = _check_options(self)
        self.gives_up_on_timeouts = options.retry is not None and issubclass(TimeoutError, options.retry.give_up_on)
        self.limits: dict[str, LimitRule] = {limit.name(name): limit.rule(name) for limit in options.limits}
        self._asked = CallOptions()
        self._terms = JobTemplate.of(self, self._asked)
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job and return its handle. Blocks until the store has the job."""
        call = self.call(*args, **kwargs)
        if call.links:
            return call.enqueue()
        return call.handle(self.app.submitter.submit_blocking((call,), self._asked.get("connection"))[0])

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit a job and return its handle once the store has the job."""
        call = self.call(*args, **kwargs)
        if call.links:
            return await call.aenqueue()
        return call.handle((await self.app.submitter.submit((call,), self._asked.get("connection")))[0])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise ``AttributeError``. For a method of another queue, name Headway's equivalent."""
            hint = _OPTION_HINTS.get(name)
            shown = f"; {hint.format(task=self.__dict__.get('__name__', 'task'))}" if hint else ""
            raise AttributeError(f"a task has no attribute {name!r}{shown}", name=name, obj=self)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call for ``enqueue_many``. Checks the arguments."""
        terms = self._terms
        if not kwargs and terms.rest is not None and terms.policy is self.app.in_force.policy and current.get() is None:
            # The same as below in half the time, for most calls.
            payload = self.signature.encode_usual(args, largest=terms.largest)
            if payload is not None:
                return _as_call((self, terms.plain_job(payload), None, terms, terms.links))
        return self._call(self.signature.bind(args, kwargs))

    def call_named(self, values: dict[str, Any]) -> Call[R]:
        """Return a call with named arguments, which come from the command line or over HTTP."""
        return self._call(self.signature.check_named(values))

    def _call(self, values: dict[str, Any]) -> Call[R]:
        terms = self.terms
        if terms.template.rung == INTERACTIVE and "session" not in self._asked:
            raise ConfigError(
                f"task {self.name} is interactive, so it is never queued: open a session, "
                f"WebSocket /api/v1/interactive?task_type={self.name}"
            )
        try:
            return Call(self, terms.new_job(values), values, terms, terms.links)
        except PayloadError:  # Only now look for results that do not exist yet: most calls have none.
            placed = place_references(values)
            if not placed.links:
                raise
        terms.check_references(placed.names)
        payload = self.signature.encode_references(placed.values, placed.names, largest=terms.largest)
        links = merge_links(placed.links, terms.links)
        return Call(self, terms.new_job(placed.values, payload), placed.values, terms, links)

    def using(self, **options: Unpack[CallKeywords]) -> Task[P, R, C]:
        """Return the same task with options for its calls. They override those of an earlier ``using``.

        ``connection``: submit inside the current transaction of this connection to the store's database.
        """
        known = CallKeywords.__annotations__
        for name in options:
            if name not in known:
                raise UnknownOption(
                    f"task {self.name}: using() has no option {name!r}{did_you_mean(name, list(known))}", option=name
                )
        asked = {name: value for name, value in options.items() if value is not None}
        return self._asking(cast("CallOptions", {**self._asked, **asked}))

    def session(
        self, values: dict[str, Any], *, server: str, expires: Seconds, tenant: str | None, trace_id: str | None
    ) -> Call[R]:
        """Return the call of a session that the server at the address ``server`` has admitted."""
        asked = CallOptions(session=server, expires=expires, tenant=tenant, trace_id=trace_id)
        return self._asking(asked).call_named(values)

    def _asking(self, asked: CallOptions) -> Task[P, R, C]:
        same: Task[P, R, C] = object.__new__(type(self))
        same.__dict__.update(self.__dict__)
        same._asked = asked
        same._terms = JobTemplate.of(self, asked)
        return same

    @property
    def is_interactive(self) -> bool:
        """Whether the jobs of this task are sessions."""
        return self.template.rung == INTERACTIVE

    @property
    def connection(self) -> Any:
        """The caller's connection that was passed to ``using``."""
        return self._asked.get("connection")

    @property
    def terms(self) -> JobTemplate:
        """The parts of a job that do not depend on its arguments, under the policy in force."""
        if self._terms.policy is not self.app.in_force.policy:
            self._terms = JobTemplate.of(self, self._asked)
        return self._terms

    @property
    def problem(self) -> str | None:
        """An error text if the policy in force lacks the lane or duration of this task, else None."""
        return self.terms.problem

    @property
    def template(self) -> NewJob:
        """The values that all jobs of this task share."""
        return self.terms.template

    def show_arguments(self, payload: bytes) -> Any:
        """Return a job's arguments with secrets redacted, for logs and traces."""
        return redact(read_payload(payload), (*self.app.settings.redact, *self.options.redact))

    def job(self, job_id: str) -> Job[R]:
        """Return a handle on a job of this task without reading the store."""
        return Job(self.app, job_id, kind=self.result_kind)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        context = Context(inline_lease(self.name))
        positional = (context, *args) if self.options.context else args
        dependencies = self.signature.dependencies
        if dependencies:
            given = self.signature.signature.bind_partial(*positional, **kwargs).arguments
            dependencies = {name: need for name, need in dependencies.items() if name not in given}
        if self.is_async:
            return invoke_async(self.fn, positional, kwargs, dependencies, context)  # type: ignore[return-value]
        needs_loop = bool(dependencies)
        bounce = run_on_loop(self.app.portal.loop()) if needs_loop else no_loop
        result: C = invoke_plain(self.fn, positional, kwargs, dependencies, context, bounce)
        return result

    def __repr__(self) -> str:
        return f"Task({self.name!r})"


def check_task(verb: str, task: object) -> None:
    """Raise ``ConfigError`` unless a task was given, or what stands for one in an integration."""
    if not hasattr(task, "call"):
        raise ConfigError(f"{verb} must be given a task, got {task!r:.100}; decorate the function with @app.task")


def no_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Raise ``AssertionError``. Used where no dependency can need a loop."""
    coroutine.close()
    raise AssertionError("no dependency, yet one needs a loop")


class TaskDecorator(Protocol):
    """The decorator that ``app.task(...)`` returns."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...


class ContextTaskDecorator(Protocol):
    """The decorator that ``app.task(context=True, ...)`` returns. The function's first parameter is the context."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R, R]: ...


def _check_options(task: Task[Any, Any, Any]) -> str:
    """Check a task's options against its function and return the executor."""
    options, name = task.options, task.name
    named = ("priority", "duration", "retry", "unique", "limits")
    check_kinds(name, {what: getattr(options, what) for what in named})
    for limit in options.limits:
        if not isinstance(limit, Limit):
            raise ConfigError(f"task {name}: limits must be a list of Limit, got {limit!r} in it")
    if options.executor not in EXECUTOR_OPTIONS:
        raise ConfigError(f"task {name}: executor is {', '.join(EXECUTOR_OPTIONS)}, not {options.executor!r}")
    executor = options.executor
    if executor == "auto":
        executor = "async" if task.is_async else "thread"
    if executor == "async" and not task.is_async:
        raise ConfigError(f"task {name}: executor 'async' needs an async def; use 'thread' or 'process'")
    if executor == "thread" and task.is_async:
        raise ConfigError(f"task {name}: executor 'thread' needs a plain def; use 'async' or 'process'")
    check_parameters(task, "fair_by", () if options.fair_by is None else (options.fair_by,))
    parameters = [limit.by for limit in options.limits if limit.by is not None and limit.by != TENANT]
    check_parameters(task, "a limit", parameters)
    check_parameters(task, "redact", options.redact)
    names = [limit.name(name) for limit in options.limits]
    if len(names) != len(set(names)):
        raise ConfigError(f"task {name}: two limits of the same kind by the same parameter; the lower one is enough")
    check_on_stop(name, options.on_stop)
    return executor


def check_interactive(name: str, function: Callable[..., Any], options: TaskOptions) -> None:
    """Raise ``ConfigError`` for options that an interactive task cannot have."""
    wrong = {
        "needs an async def": not inspect.iscoroutinefunction(function) or options.executor not in ("auto", "async"),
        "needs context=True: the client is met there": not options.context,
        "cannot go with persist=False": not options.persist,
        "runs once, so max_retries can only be 0": options.max_retries not in (None, 0) or options.retry is not None,
        "is a session for the client that opens it, so it cannot be unique": options.unique is not None,
        "cannot be stopped by a rung, so on_stop means nothing": options.on_stop != "fail",
    }
    for why, is_so in wrong.items():
        if is_so:
            raise ConfigError(f"task {name}: duration={INTERACTIVE!r} {why}")
