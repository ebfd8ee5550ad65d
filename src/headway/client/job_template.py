"""The parts of a task's jobs that do not depend on their arguments, and the checks of what a caller asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from headway.client.codec import Signature, add_server
from headway.client.context import current
from headway.client.links import Link, read_links
from headway.client.options import CallOptions, Seconds, TaskOptions, Unique, check_kinds, milliseconds
from headway.client.settings import seconds
from headway.core.errors import BadArguments, ConfigError
from headway.core.job import NewJob, RetryRule
from headway.core.policy.document import ELASTIC, INTERACTIVE, TENANT, Policy
from headway.core.policy.enforced import applies, parameter_key, task_rule
from headway.core.suggest import did_you_mean
from headway.runtime.job_ids import new_job_id

if TYPE_CHECKING:
    from headway.client.task import Task

ON_STOP = ("fail", "retry_longer", "partial")
RUNGS = ("fast", "medium", "slow")  # The durations of a policy without a ladder, where they have no effect.
KEY_MAX = 100  # Characters of a value in a limit's key. A longer value is replaced by its digest.
YEAR_9999_MS = 253_402_300_799_000
RETRIES_MAX = 1_000_000

_as_job = partial(tuple.__new__, NewJob)  # Half the cost of ``_make``, on the submit path.


@dataclass(frozen=True, slots=True)
class JobTemplate:
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
    def of(cls, task: Task[Any, Any, Any], call: CallOptions) -> JobTemplate:
        options, policy, settled = task.options, task.app.policy, task.app.in_force.fixed
        check_kinds(task.name, call)
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
        check_parameters(task, "unique", unique.by or () if unique else ())
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


def check_on_stop(name: str, on_stop: str) -> None:
    if on_stop not in ON_STOP:
        raise ConfigError(f"task {name}: on_stop is fail, retry_longer or partial, not {on_stop!r}")


def _retry_rule(name: str, options: TaskOptions, on_stop: str | None) -> RetryRule | None:
    """Return the retry rule of each job, or None if the policy decides everything."""
    chosen = on_stop or options.on_stop
    check_on_stop(name, chosen)
    if options.retry is None:
        return None if chosen == "fail" else RetryRule("policy", on_stop=chosen)
    return options.retry.rule()._replace(on_stop=chosen)


def check_parameters(task: Task[Any, Any, Any], what: str, names: Iterable[str]) -> None:
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
    found = [""] if isinstance(needs, str) or not isinstance(needs, Iterable) else list(needs)
    if not all(isinstance(need, str) and need for need in found):
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
