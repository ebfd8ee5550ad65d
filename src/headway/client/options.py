"""The options of tasks and calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from glob import escape
from typing import Any, TypedDict

from headway.client.links import OnFailure
from headway.client.settings import seconds
from headway.core.errors import ConfigError
from headway.core.job import RetryRule
from headway.core.policy.document import LIMIT_SCOPES, TENANT, LimitRule
from headway.core.policy.enforced import task_limit_name
from headway.core.policy.retry import BACKOFFS, DELAY_MS_MAX
from headway.core.policy.units import parse_rate, write_rate

Seconds = float | int | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The rule for retries of failed attempts.

    ``backoff``: exponential (base, 2 base, 4 base …), linear (base, 2 base, 3 base …) or fixed, up to ``cap`` seconds.
    ``jitter``: the random part of each wait, from 0 to 1.
    ``on``: retry only these exceptions; an empty tuple means all. ``give_up_on``: never retry these exceptions.
    """

    backoff: str = "exponential"
    base: Seconds = 1
    cap: Seconds = 60
    jitter: float = 0.0
    on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.backoff not in BACKOFFS:
            raise ConfigError(f"Retry: backoff is {', '.join(BACKOFFS)}, not {self.backoff!r}")
        if seconds(self.base, "Retry: base") < 0 or seconds(self.cap, "Retry: cap") < 0:
            raise ConfigError("Retry: base and cap must not be negative")
        if not isinstance(self.jitter, (int, float)) or not 0 <= self.jitter <= 1:
            raise ConfigError(f"Retry: jitter is between 0 and 1, not {self.jitter!r}")
        object.__setattr__(self, "on", _exceptions("on", self.on))
        object.__setattr__(self, "give_up_on", _exceptions("give_up_on", self.give_up_on))

    @classmethod
    def of(cls, rule: RetryRule) -> Retry:
        """Build a ``Retry`` from the rule that a store keeps."""
        return cls(backoff=rule.backoff, base=rule.base_ms / 1_000, cap=rule.cap_ms / 1_000, jitter=rule.jitter)

    def rule(self) -> RetryRule:
        """Return the rule that a store keeps, which has no exception classes."""
        base_ms, cap_ms = (min(milliseconds(length, "Retry"), DELAY_MS_MAX) for length in (self.base, self.cap))
        return RetryRule(self.backoff, base_ms, cap_ms, self.jitter)

    def retriable(self, error: BaseException) -> bool:
        """Return whether an attempt that raised this error may be retried."""
        return not isinstance(error, self.give_up_on) and (not self.on or isinstance(error, self.on))


def _exceptions(what: str, kinds: Any) -> tuple[type[BaseException], ...]:
    """Return one or several exception classes as a tuple. Raises ``ConfigError`` for other values."""
    found: tuple[Any, ...] = (kinds,) if isinstance(kinds, type) or not isinstance(kinds, Iterable) else tuple(kinds)
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigError(f"Retry: {what} must be a tuple of exception classes, got {kind!r}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """Allow at most one live job for each combination of these parameters. ``None`` means all parameters."""

    by: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.by is not None and (isinstance(self.by, str) or not isinstance(self.by, Iterable)):
            raise ConfigError(f"Unique: by must be a list of parameters, got {self.by!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A hard limit on how many jobs of a task run at once, or on how often they start.

    ``rate``: for example "100/min" or "5/s". Starts are evenly spaced, so no period has more than that.
    ``burst``: how many jobs may start at once. A period may then have ``burst - 1`` more starts than ``rate``.
    ``by``: a parameter, or ``"tenant"``. Each of its values has a limit of its own.
    ``scope``: with a parameter in ``by``, count equal values of different tenants apart (``"tenant"``) or together
    (``"global"``).
    """

    concurrency: int | None = None
    rate: str | None = None
    by: str | None = None
    burst: int | None = None
    scope: str = "tenant"

    def __post_init__(self) -> None:
        if self.scope not in LIMIT_SCOPES or (self.scope == "global" and self.by in (None, TENANT)):
            raise ConfigError(
                f"Limit: scope must be 'tenant', or 'global' with a parameter in by, not {self.scope!r} by {self.by!r}"
            )
        if self.by is not None and (not isinstance(self.by, str) or not self.by):
            raise ConfigError(f"Limit: by is the name of a parameter, or 'tenant', not {self.by!r}")
        if self.concurrency is None and self.rate is None:
            raise ConfigError("Limit: give concurrency, rate or both")
        if self.concurrency is not None and not _whole(self.concurrency):
            raise ConfigError(f"Limit: concurrency is a whole number of at least 1, not {self.concurrency!r}")
        if self.burst is not None and (self.rate is None or not _whole(self.burst)):
            raise ConfigError(f"Limit: burst is a whole number of at least 1 beside a rate, not {self.burst!r}")
        self.rule("")

    @classmethod
    def of(cls, rule: LimitRule) -> Limit:
        """Build a ``Limit`` from the rule that a store keeps."""
        rate = None if rule.count is None else write_rate(rule.count, rule.period_ms)
        burst = None if rule.count is None else rule.burst
        return cls(concurrency=rule.concurrency, rate=rate, by=rule.by, burst=burst, scope=rule.scope)

    def name(self, task: str) -> str:
        """Return the name of this limit. Policies may override the limit by this name."""
        return task_limit_name(task, self.rule(task))

    def rule(self, task: str) -> LimitRule:
        """Return the rule that a store checks."""
        count, period_ms = None, 0
        if self.rate is not None:
            try:
                count, period_ms = parse_rate(self.rate)
            except ValueError as problem:
                raise ConfigError(f"Limit: rate: {problem}") from None
        return LimitRule(self.concurrency, count, period_ms, self.burst or 1, self.by, (escape(task),), self.scope)


# The types of options that are not numbers or times, and what an error calls them.
_KINDS: dict[str, tuple[type, str]] = {
    "priority": (str, "the name of a lane"),
    "duration": (str, "the name of a rung"),
    "retry": (Retry, "a Retry"),
    "unique": (Unique, "a Unique"),
    "limits": (Sequence, "a list of Limit"),
}


def check_kinds(task: str, options: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for an option of another type."""
    for name in options.keys() & _KINDS.keys():
        kind, wanted = _KINDS[name]
        if options[name] is not None and not isinstance(options[name], kind):
            raise ConfigError(f"task {task}: {name} must be {wanted}, got {options[name]!r}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@dataclass(frozen=True, slots=True)
class Dependency:
    """A parameter that the worker fills in. ``Depends`` builds it."""

    provider: Any
    cache: bool = True


def Depends(provider: Any, *, cache: bool = True) -> Any:
    """Declare a parameter that the worker fills in by calling a function.

    The function may be plain, ``async``, or a generator that cleans up after its ``yield``. It may have dependencies
    and take the job's ``Context``. The worker calls it once per job, or once per use if ``cache`` is false.
    """
    if not callable(provider):
        raise ConfigError(f"Depends needs a function, not {provider!r}")
    return Dependency(provider, cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of a task, as passed to the decorator."""

    priority: str | None = None
    duration: str | None = None
    fair_by: str | None = None
    limits: Sequence[Limit] = ()
    max_retries: int | None = None
    retry: Retry | None = None
    unique: Unique | None = None
    timeout: Seconds | None = None
    needs: Iterable[str] = ()
    persist: bool = True
    executor: str = "auto"
    on_stop: str = "fail"
    redact: Sequence[str] = ()
    context: bool = False


class TaskKeywords(TypedDict, total=False):
    """The arguments of ``@app.task`` except ``context``: the fields of ``TaskOptions``, and the task's name."""

    name: str | None
    priority: str | None
    duration: str | None
    fair_by: str | None
    limits: Sequence[Limit]
    max_retries: int | None
    retry: Retry | None
    unique: Unique | None
    timeout: Seconds | None
    needs: Iterable[str]
    persist: bool
    executor: str
    on_stop: str
    redact: Sequence[str]


class CallKeywords(TypedDict, total=False):
    """The arguments of ``task.using``. None is the same as leaving out the option."""

    priority: str | None
    delay: Seconds | None
    run_after: datetime | None
    idempotency_key: str | None
    expires: Seconds | None
    tenant: str | None
    max_retries: int | None
    timeout: Seconds | None
    needs: Iterable[str] | None
    unique: Unique | None
    trace_id: str | None
    duration: str | None
    on_stop: str | None
    connection: object | None  # The caller's connection. The job is submitted in its transaction.
    after: Sequence[Any] | None  # Calls, jobs and batches that the job waits for.
    on_failure: OnFailure | None  # What the job does if one of them ends without completing.


class CallOptions(CallKeywords, total=False):
    """The options of one call, set by ``using`` or by the server that admitted a session."""

    session: str  # The address of the server that admitted the session and will end it.


def milliseconds(value: object, what: str) -> int:
    """Return a length of time in whole milliseconds."""
    return round(seconds(value, what) * 1_000)
