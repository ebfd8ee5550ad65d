"""A task: a named function that can be run as a job."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
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

from headway.client.codec import REFERENCES_VERSION, Signature, add_server, read_payload, result_type
from headway.client.context import Context, current, inline_lease
from headway.client.invoke import invoke_async, invoke_plain, run_on_loop
from headway.client.job import Job
from headway.client.links import Link, OnFailure, Reference, merge_links, place_references, read_links
from headway.client.options import CallKeywords, CallOptions, Seconds, TaskOptions, Unique, milliseconds
from headway.client.settings import seconds
from headway.core.errors import BadArguments, ConfigError, PayloadError, UnknownOption
from headway.core.job import NewJob, RetryRule, SubmitReply
from headway.core.policy.document import ELASTIC, INTERACTIVE, TENANT, LimitRule, Policy
from headway.core.policy.enforced import applies, parameter_key, task_rule
from headway.core.suggest import did_you_mean
from headway.core.worker import EXECUTORS
from headway.observability.redaction import redact
from headway.runtime.job_ids import new_job_id

if TYPE_CHECKING:
    from headway.client.app import Headway
    from headway.client.batch import Batch

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C")

EXECUTOR_OPTIONS = ("auto", *EXECUTORS)
ON_STOP = ("fail", "retry_longer", "partial")
RUNGS = ("fast", "medium", "slow")  # The durations of a policy without a ladder, where they have no effect.
KEY_MAX = 100  # Characters of a value in a limit's key. A longer value is replaced by its digest.
YEAR_9999_MS = 253_402_300_799_000
RETRIES_MAX = 1_000_000

_as_job = partial(tuple.__new__, NewJob)  # Half the cost of ``_make``, on the submit path.


class Call(NamedTuple, Generic[R]):
    """A call of a task that has not been submitted yet."""

    task: Task[Any, R, Any]
    new: NewJob
    values: dict[str, Any] | None  # The arguments by name, or None: decode them from the payload.
    terms: _JobTemplate
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

    def _new_job(self, terms: _JobTemplate) -> NewJob:
        payload = self.new.payload
        if payload.startswith(REFERENCES_VERSION):
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
        self._terms = _JobTemplate.of(self, self._asked)
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
        same._terms = _JobTemplate.of(self, asked)
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
    def terms(self) -> _JobTemplate:
        """The parts of a job that do not depend on its arguments, under the policy in force."""
        if self._terms.policy is not self.app.policy:
            self._terms = _JobTemplate.of(self, self._asked)
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


@dataclass(frozen=True, slots=True)
class _JobTemplate:
    """The parts of a task's jobs that do not depend on their arguments, computed once and not for each job.

    ``problem``: what the policy lacks for these jobs. It is no error yet while the store may have another policy.
    """

    policy: Policy
    problem: str | None
    bound: tuple[tuple[str, str, bool], ...]  # Limits by a parameter: name, parameter, shared by tenants.
    signature: Signature
    template: NewJob
    fair_by: str | None
    unique: Unique | None
    largest: int
    server: str | None  # The server of a session, which connects worker and client.
    rest: tuple[Any, ...] | None  # All fields after the payload, if they are the same for every call.
    chose_lane: bool  # The call, the policy or the task names the lane.
    links: tuple[Link, ...]  # What all calls wait for.

    @classmethod
    def of(cls, task: Task[Any, Any, Any], call: CallOptions) -> _JobTemplate:
        options, policy, settled = task.options, task.app.policy, task.app.in_force.fixed
        rule = task_rule(policy, task.name)  # Overrides the decorator; the call overrides both.
        lane_name = call.get("priority") or rule.priority or options.priority or policy.default_lane
        rung = _first(call.get("duration"), rule.duration, options.duration)
        problem = _no_lane(task.name, lane_name, policy) or _no_rung(task.name, rung, policy)
        if problem is not None and settled:
            raise ConfigError(problem)
        lane = policy.lanes.get(lane_name) or policy.lanes[policy.default_lane]
        max_retries = _first(call.get("max_retries"), rule.max_retries, options.max_retries, lane.max_retries)
        if rung == INTERACTIVE:
            max_retries = 0  # The client has left before a second attempt.
        timeout_ms = _first(
            _length_ms(task.name, "timeout", call.get("timeout")),
            rule.timeout_ms,
            _length_ms(task.name, "timeout", options.timeout),
            lane.timeout_ms,
        )
        if not isinstance(max_retries, int) or isinstance(max_retries, bool) or not 0 <= max_retries <= RETRIES_MAX:
            raise ConfigError(
                f"task {task.name}: max_retries must be a whole number from 0 to {RETRIES_MAX:,}, not {max_retries!r}"
            )
        needs = _first(call.get("needs"), options.needs)
        unique = call.get("unique") or options.unique
        _check_parameters(task, "unique", unique.by or () if unique else ())
        template = NewJob(
            job_id=new_job_id(),
            task=task.name,
            payload=b"",
            digest=b"",
            lane=lane_name,
            max_retries=max_retries,
            timeout_ms=timeout_ms,
            needs=_needs(task.name, needs),
            rung=rung,
            tenant=_optional_text(task.name, "tenant", call.get("tenant")),
            retry=_retry_rule(task.name, options, call.get("on_stop")),
            delay_ms=_delay_ms(task.name, call),
            due_at=_due_at(task.name, call.get("run_after")),
            expires_ms=_length_ms(task.name, "expires", call.get("expires")),
            idempotency_key=_key(task.name, call.get("idempotency_key")),
            idempotency_ms=policy.keep.idempotency_ms,
            trace_id=_optional_text(task.name, "trace_id", call.get("trace_id")),
            persist=options.persist,
        )
        if not options.persist:
            _check_transient(task.name, template, unique, options)
        limits = {**task.limits, **policy.limits}
        bound = tuple(
            (name, rule.by, rule.scope == "global")
            for name, rule in sorted(limits.items())
            if rule.by not in (None, TENANT) and rule.by in task.signature.parameters and applies(rule, task.name)
        )
        largest = task.app.settings.payload_max
        # A transient job has no tenant, whatever the policy says.
        fair_by = (task_rule(policy, task.name).fair_by if options.persist else None) or options.fair_by
        fixed = not bound and fair_by is None and unique is None and template.idempotency_key is None
        session = call.get("session")
        rest = template[3:] if fixed and session is None and rung != INTERACTIVE else None
        chose_lane = bool(call.get("priority") or rule.priority or options.priority)
        links = read_links(call.get("after") or (), call.get("on_failure") or "cancel")
        return cls(
            policy, problem, bound, task.signature, template, fair_by, unique, largest, session, rest,
            chose_lane, links,
        )  # fmt: skip

    def check_references(self, names: frozenset[str]) -> None:
        """Raise ``BadArguments`` if tenant, limits or uniqueness depend on a result that does not exist yet."""
        unique = self.unique
        chosen = () if unique is None else self.signature.parameters if unique.by is None else unique.by
        needed: dict[str | None, str] = {
            self.fair_by: "fair_by",
            **{by: "a limit" for _, by, _ in self.bound},
            **dict.fromkeys(chosen, "unique"),
        }
        for name in names:
            if name in needed:
                raise BadArguments(
                    f"task {self.template.task}: {needed[name]} uses the argument {name!r}, so it cannot be the result "
                    "of a job that has not run yet"
                )

    def new_job(self, values: dict[str, Any], payload: bytes | None = None) -> NewJob:
        template = self.template
        if payload is None:
            payload = self.signature.encode(values, largest=self.largest)
        outer = current.get()
        if self.rest is not None and outer is None:
            return self.plain_job(payload)
        if self.server is not None:
            payload = add_server(payload, self.server)
        tenant = template.tenant
        if tenant is None and self.fair_by is not None:
            value = values.get(self.fair_by, self.signature.defaults.get(self.fair_by))
            tenant = None if value is None else check_text(str(value), f"task {template.task}: {self.fair_by}")
        digest = b"" if template.idempotency_key is None else self._digest(values)
        return NewJob(
            new_job_id(),
            template.task,
            payload,
            digest,
            template.lane,
            template.max_retries,
            template.timeout_ms,
            template.needs,
            template.rung,
            tenant,
            template.retry,
            template.delay_ms,
            template.due_at,
            template.expires_ms,
            template.idempotency_key,
            template.idempotency_ms,
            None if self.unique is None else self._unique_key(self.unique, values, tenant),
            template.trace_id or (None if outer is None else outer.traceparent or outer.trace_id),
            template.persist,
            tuple(self._bound_key(*one, values, tenant) for one in self.bound) if self.bound else (),
        )

    def plain_job(self, payload: bytes) -> NewJob:
        """Return what ``new_job`` returns, in a third of the time, if only id and payload depend on the call."""
        return _as_job((new_job_id(), self.template.task, payload, *(self.rest or ())))

    def _bound_key(self, name: str, by: str, shared: bool, values: dict[str, Any], tenant: str | None) -> str:
        value = values.get(by, self.signature.defaults.get(by))
        text = value if isinstance(value, str) else str(value)
        if not isinstance(value, (str, int)) or len(text) > KEY_MAX:
            text = hashlib.blake2b(self.signature.canonical({by: value}), digest_size=16).hexdigest()
        whose = None if shared else tenant
        if whose is not None and len(whose) > KEY_MAX:
            whose = hashlib.blake2b(whose.encode(), digest_size=16).hexdigest()
        return parameter_key(name, check_text(text, f"task {self.template.task}: {by}"), whose)

    def _digest(self, values: dict[str, Any]) -> bytes:
        """Return a 128-bit digest of task and arguments. The order of keys makes no difference."""
        text = self.template.task.encode() + b"\0" + self.signature.canonical(values)
        return hashlib.blake2b(text, digest_size=16).digest()

    def _unique_key(self, unique: Unique, values: dict[str, Any], tenant: str | None) -> str:
        values = {**self.signature.defaults, **values}  # A default that was passed explicitly makes no difference.
        chosen = values if unique.by is None else {name: values.get(name) for name in unique.by}
        text = self.signature.canonical(chosen)
        if tenant is not None:  # A tenant must not receive the job of another tenant.
            text = tenant.encode() + b"\0" + text
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        return f"{self.template.task}:{digest}"


def cron_key(task: str) -> str:
    """Return the unique key that allows a cron at most one live job."""
    return f"cron:{task}"


def is_unique_key(key: str, task: str) -> bool:
    """Return whether a key has the form of the keys of a task's unique jobs or of its cron."""
    digest = key.removeprefix(f"{task}:")
    return key == cron_key(task) or (len(digest) == 32 and key != digest and set(digest) <= set("0123456789abcdef"))


def _check_options(task: Task[Any, Any, Any]) -> str:
    """Check a task's options against its function and return the executor."""
    options, name = task.options, task.name
    if options.executor not in EXECUTOR_OPTIONS:
        raise ConfigError(f"task {name}: executor is {', '.join(EXECUTOR_OPTIONS)}, not {options.executor!r}")
    executor = options.executor
    if executor == "auto":
        executor = "async" if task.is_async else "thread"
    if executor == "async" and not task.is_async:
        raise ConfigError(f"task {name}: executor 'async' needs an async def; use 'thread' or 'process'")
    if executor == "thread" and task.is_async:
        raise ConfigError(f"task {name}: executor 'thread' needs a plain def; use 'async' or 'process'")
    _check_parameters(task, "fair_by", () if options.fair_by is None else (options.fair_by,))
    parameters = [limit.by for limit in options.limits if limit.by is not None and limit.by != TENANT]
    _check_parameters(task, "a limit", parameters)
    _check_parameters(task, "redact", options.redact)
    names = [limit.name(name) for limit in options.limits]
    if len(names) != len(set(names)):
        raise ConfigError(f"task {name}: two limits of the same kind by the same parameter; the lower one is enough")
    _check_on_stop(name, options.on_stop)
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


def _check_on_stop(name: str, on_stop: str) -> None:
    if on_stop not in ON_STOP:
        raise ConfigError(f"task {name}: on_stop is fail, retry_longer or partial, not {on_stop!r}")


def _retry_rule(name: str, options: TaskOptions, on_stop: str | None) -> RetryRule | None:
    """Return the retry rule of each job, or None if the policy decides everything."""
    chosen = on_stop or options.on_stop
    _check_on_stop(name, chosen)
    if options.retry is None:
        return None if chosen == "fail" else RetryRule("policy", on_stop=chosen)
    return options.retry.rule()._replace(on_stop=chosen)


def _check_parameters(task: Task[Any, Any, Any], what: str, names: Iterable[str]) -> None:
    known = list(task.signature.parameters)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"task {task.name}: {what} names {name!r}, which is not a parameter of the function"
                f"{did_you_mean(name, known)}"
            )


def _no_lane(task: str, name: str, policy: Policy) -> str | None:
    """Return an error text if the policy lacks a lane, else None."""
    if name in policy.lanes:
        return None
    known = list(policy.lanes)
    return f"task {task}: no lane {name!r} in the policy{did_you_mean(name, known)} (lanes: {', '.join(known)})"


def _no_rung(task: str, name: str | None, policy: Policy) -> str | None:
    """Return an error text if the policy lacks a duration, else None."""
    known = [*([rung.name for rung in policy.ladder.rungs] or RUNGS), ELASTIC]
    if name is None or name == INTERACTIVE or name in known:
        return None
    return f"task {task}: no duration {name!r} on the ladder{did_you_mean(name, known)} (durations: {', '.join(known)})"


def _check_transient(name: str, job: NewJob, unique: Unique | None, options: TaskOptions) -> None:
    wrong = {
        "limits": options.limits,
        "fair_by": options.fair_by,
        "duration": job.rung,
        "unique": unique,
        "delay or run_after": job.delay_ms or job.due_at,
        "idempotency_key": job.idempotency_key,
        "expires": job.expires_ms,
        "tenant": job.tenant,
    }
    for what, value in wrong.items():
        if value:
            raise ConfigError(f"task {name}: {what} cannot go with persist=False: nothing is kept of a transient job")


def _needs(name: str, needs: Iterable[str]) -> tuple[str, ...]:
    found = [needs] if isinstance(needs, str) else list(needs)
    if isinstance(needs, str) or not all(isinstance(need, str) and need for need in found):
        raise ConfigError(f"task {name}: needs is a set of names, not {needs!r}")
    return tuple(sorted({check_text(need, f"task {name}: needs") for need in found}))


def _delay_ms(name: str, call: CallOptions) -> int:
    delay = call.get("delay")
    if delay is None:
        return 0
    if call.get("run_after") is not None:
        raise ConfigError(f"task {name}: give delay or run_after, not both")
    if seconds(delay, f"task {name}: delay") < 0:
        raise ConfigError(f"task {name}: delay must not be negative, but is {delay}")
    return _bounded(name, "delay", milliseconds(delay, "delay"))


def _due_at(name: str, moment: Any) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise ConfigError(f"task {name}: run_after is a datetime with a time zone, not {moment!r}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ConfigError(
            f"task {name}: run_after {moment.isoformat()} has no time zone; "
            "write datetime(…, tzinfo=UTC) or .astimezone()"
        )
    return round(moment.timestamp() * 1_000)


def _length_ms(name: str, what: str, length: Seconds | None) -> int | None:
    if length is None:
        return None
    if seconds(length, f"task {name}: {what}") <= 0:
        raise ConfigError(f"task {name}: {what} must be above 0, not {length}")
    return _bounded(name, what, milliseconds(length, what))


def _bounded(name: str, what: str, length_ms: int) -> int:
    if length_ms > YEAR_9999_MS:
        raise ConfigError(f"task {name}: {what} leads past the year 9999")
    return length_ms


def _key(name: str, key: str | None) -> str | None:
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= 255):
        raise ConfigError(f"task {name}: idempotency_key is text of 1 to 255 characters, not {key!r}")
    return _optional_text(name, "idempotency_key", key)


def _optional_text(name: str, what: str, value: object) -> str | None:
    return None if value is None else check_text(value, f"task {name}: {what}")


def check_text(value: object, what: str) -> str:
    """Return a text. Raises ``ConfigError`` for NUL and lone surrogates, which some stores cannot keep."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be text, not {value!r}")
    if "\0" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise ConfigError(f"{what} must be text without NUL and lone surrogates, not {value!r}")
    return value


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
