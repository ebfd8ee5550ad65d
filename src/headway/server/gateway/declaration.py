"""Check what a worker declares when it registers over HTTP: its intervals, tasks, limits and crons."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.client.app import Headway
from headway.client.codec import SESSION, names_server
from headway.client.job_template import is_unique_key
from headway.client.options import Limit
from headway.client.remote_task import task_from_catalogue
from headway.core.cron import parse_cron
from headway.core.errors import ConfigError
from headway.core.policy.document import INTERACTIVE, LimitRule
from headway.core.policy.enforced import applies, counter_name
from headway.core.worker import TASK, tasks_in
from headway.policy_store.catalogue import CronDocument, TaskEntry
from headway.protocol.worker import SECONDS_MAX, TEXT_MAX, RegisterRequest
from headway.security.tokens import covers
from headway.server.gateway.service import NewWorker
from headway.server.problems import Problem

DEAD_AFTER_MAX = 600.0  # Seconds without a heartbeat after which every worker counts as dead.
ENTRY_MAX = 64 << 10  # Bytes of one task's entry in the catalogue.
KEY_MAX = 300  # Characters of a key made of names. A store holds 1,200 bytes, and a character takes up to four.
LARGEST = SECONDS_MAX * 1_000
ANY = "*"  # No task may have this name: it would be an offer to run any task.


def new_worker(body: RegisterRequest, app: Headway) -> NewWorker:
    """Return a checked registration. Raises ``Problem`` naming what is wrong."""
    settings = app.settings
    heartbeat = settings.heartbeat if body.heartbeat_seconds is None else body.heartbeat_seconds
    dead_after = max(settings.dead_after, 3 * heartbeat) if body.dead_after_seconds is None else body.dead_after_seconds
    dead_after = min(dead_after, max(DEAD_AFTER_MAX, settings.dead_after))
    if dead_after < 2 * heartbeat:
        raise Problem("invalid", "dead_after_seconds must be at least twice heartbeat_seconds")
    _check_text(body)
    tasks = body.tasks or []
    for entry in tasks:
        _check_entry(entry, app)
    names = {entry.name for entry in tasks}
    limits = body.limits or {}
    if unknown := sorted(limits.keys() - names):
        raise Problem("invalid", f"limits: {unknown[0]!r} is not among the tasks")
    crons = body.crons or []
    rules = {name: _limits(name, rules.values()) for name, rules in limits.items()}
    for cron in crons:
        _check_cron(cron, names, settings.payload_max)
        governing = {name for name, rule in app.policy.limits.items() if applies(rule, cron.task)}
        _check_cron_keys(cron, {*rules.get(cron.task, {}), *governing})
    return NewWorker(
        capabilities=tuple(body.capabilities),
        slots=body.capacity,
        host=body.name,
        pid=body.pid,
        version=body.version,
        reserved=body.reserved,
        tasks=body.tasks,
        limits=rules,
        crons=crons,
        heartbeat_ms=_ms(heartbeat),
        lease_ms=_ms(dead_after),
        confirm_ms=_ms(settings.confirm),
        grace_ms=_ms(body.grace_seconds),
    )


def _check_text(body: RegisterRequest) -> None:
    """Refuse lone surrogates, which no store can hold, and capabilities that look like tasks."""
    try:
        msgspec.json.encode(body)
    except ValueError:
        raise Problem("invalid", "a text contains half of a surrogate pair, which cannot be stored") from None
    if tasks_in(body.capabilities):
        raise Problem("invalid", f"capabilities: a capability cannot begin with {TASK}; name the tasks under tasks")


def _check_entry(entry: TaskEntry, app: Headway) -> None:
    """Refuse names and numbers that readers of the catalogue cannot handle."""
    texts = [entry.name, entry.lane, entry.executor, *entry.needs, entry.fair_by or "-", entry.duration or "-"]
    if entry.name == ANY or any(not text or len(text) > TEXT_MAX or "\0" in text for text in texts):
        raise Problem("invalid", f"tasks: names must have 1 to {TEXT_MAX} characters, without NUL, and not be {ANY!r}")
    numbers = [entry.max_retries or 0, entry.timeout_ms or 0, *(entry.retry[1:3] if entry.retry else ())]
    if entry.timeout_ms == 0 or any(not 0 <= number <= LARGEST for number in numbers):
        raise Problem("invalid", f"tasks: {entry.name}: its timeout or retries are out of bounds")
    if entry.retry is not None and not 0 <= entry.retry.jitter <= 1:
        raise Problem("invalid", f"tasks: {entry.name}: jitter must be between 0 and 1")
    if len(msgspec.json.encode(entry)) > ENTRY_MAX:
        raise Problem("invalid", f"tasks: {entry.name}: its entry is larger than {ENTRY_MAX:,} bytes")
    _limits(entry.name, entry.limits)
    try:
        task_from_catalogue(app, entry)  # As every submit over HTTP will do.
    except ConfigError:
        pass  # It does not fit the policy, which may change. A submit reports it.
    except Exception as problem:
        raise Problem("invalid", f"tasks: {entry.name}: parameters must be a JSON Schema with properties") from problem


def _limits(task: str, rules: Iterable[LimitRule]) -> dict[str, LimitRule]:
    """Return the limits that a task declares. The names and tasks in the rules are ignored."""
    try:
        found = [Limit.of(rule) for rule in rules]
    except (ConfigError, ZeroDivisionError) as problem:
        raise Problem("invalid", f"limits: {task}: {problem}") from None
    if any(max(one.concurrency or 0, one.burst or 0) > LARGEST for one in found):
        raise Problem("invalid", f"limits: {task}: a limit is out of bounds")
    return {one.name(task): one.rule(task) for one in found}


def check_tasks(new: NewWorker, patterns: tuple[str, ...] | None) -> None:
    """Raise ``Problem`` if a worker names tasks that its token is not for."""
    for entry in new.tasks or ():
        if patterns is not None and not covers(patterns, entry.name):
            raise Problem(
                "forbidden", f"this token is for the tasks {', '.join(patterns)[:TEXT_MAX]}, not for {entry.name!r}"
            )


def _check_cron_keys(cron: CronDocument, limits: set[str]) -> None:
    """Refuse a cron whose jobs would count for a tenant or hold keys of other tasks."""
    if cron.tenant is not None:
        raise Problem("invalid", f"crons: {cron.task}: a cron that comes over HTTP cannot have a tenant")
    if cron.unique_key is not None and not is_unique_key(cron.unique_key, cron.task):
        raise Problem("invalid", f"crons: {cron.task}: unique_key must be the task's name, a colon and 32 hex digits")
    known = {counter_name(name) for name in limits}
    for key in cron.limits:
        name, _, value = key.partition("=")
        if name not in known or "=" in value:  # A value before another "=" is a tenant.
            raise Problem("invalid", f"crons: {cron.task}: {key[:TEXT_MAX]!r} is not a limit of this task")


def _check_cron(cron: CronDocument, names: set[str], largest: int) -> None:
    if cron.task not in names:
        raise Problem("invalid", f"crons: {cron.task!r} is not among the tasks")
    if cron.entry is not None:
        raise Problem("invalid", f"crons: {cron.task}: a cron that comes over HTTP cannot have an entry")
    try:
        parse_cron(cron.expression, cron.tz)
        if names_server(cron.payload):
            raise Problem("invalid", f"crons: {cron.task}: a task cannot have a parameter {SESSION!r}")
    except (ValueError, msgspec.DecodeError) as problem:
        raise Problem("invalid", f"crons: {cron.task}: {problem}") from None
    if cron.rung == INTERACTIVE:
        raise Problem("invalid", f"crons: {cron.task}: an interactive task needs a client and cannot have a cron")
    # Workers submit these values as they are. A value that no store accepts would stop every one of them.
    given = [cron.lane, *cron.needs, *cron.limits, cron.unique_key or "-", cron.rung or "-", cron.tenant or "-"]
    if any(not text or len(text) > KEY_MAX or "\0" in text for text in given):
        raise Problem("invalid", f"crons: {cron.task}: its texts must have 1 to {KEY_MAX:,} characters, without NUL")
    numbers = [cron.max_retries, *(cron.retry[1:3] if cron.retry else ())]
    within = 0 < cron.timeout_ms <= LARGEST and all(0 <= number <= LARGEST for number in numbers)
    if len(cron.payload) > largest or not within or (cron.retry is not None and not 0 <= cron.retry.jitter <= 1):
        raise Problem("invalid", f"crons: {cron.task}: its payload, timeout or retries are out of bounds")


def _ms(seconds: float) -> int:
    return round(seconds * 1_000)
