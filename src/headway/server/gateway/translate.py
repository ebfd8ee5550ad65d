"""Translates between messages of the worker protocol and values of the gateway."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

import msgspec

from headway.client.app import Headway
from headway.client.codec import SESSION, encode_result, names_server, payload_body, split_server
from headway.client.context import trace_of
from headway.client.options import Limit
from headway.client.remote_task import task_from_catalogue
from headway.client.task import is_unique_key
from headway.core.cron import parse_cron
from headway.core.errors import ConfigError, JobError, PayloadError
from headway.core.job import JobId
from headway.core.lease import TOKEN_BYTES, Lease
from headway.core.policy.document import INTERACTIVE, LimitRule
from headway.core.policy.enforced import applies, counter_name
from headway.core.policy.retry import (
    DELAY_MS_MAX,
    Crashed,
    Ending,
    Raised,
    Released,
    Returned,
    Snoozed,
    Stopped,
    TimedOut,
    Unknown,
)
from headway.observability.job_output import KEPT_MAX, Chunk
from headway.policy_store.catalogue import CronDocument, TaskEntry
from headway.protocol.sessions import AddressRefused, AddressSigner
from headway.protocol.worker import LeaseDetails, LeasedTask
from headway.security.tokens import covers
from headway.server.gateway.long_poll import PollOptions
from headway.server.gateway.results import ReportedOutcome, ReportedProgress
from headway.server.gateway.service import NewWorker
from headway.server.problems import Problem
from headway.server.schemas import worker as shapes
from headway.server.schemas.rest import SECONDS_MAX, TEXT_MAX

MESSAGE_MAX = 8_000
TRACEBACK_MAX = 32_000
DEAD_AFTER_MAX = 600.0  # Seconds: for longer no worker counts as one without a heartbeat.
ENTRY_MAX = 64 << 10  # Bytes.
KEY_MAX = 300  # Letters of a key that is made of names: 1,200 bytes are as much as a store keeps.
LARGEST = SECONDS_MAX * 1_000
ANY = "*"  # No task has this name: it would be an offer to run any.

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


# ---------------------------------------------------------------------- registering


def new_worker(body: shapes.RegisterBody, app: Headway) -> NewWorker:
    """Read a registration. Raises ``Problem`` naming what is wrong with it."""
    settings = app.settings
    heartbeat = settings.heartbeat if body.heartbeat_seconds is None else body.heartbeat_seconds
    dead_after = max(settings.dead_after, 3 * heartbeat) if body.dead_after_seconds is None else body.dead_after_seconds
    dead_after = min(dead_after, max(DEAD_AFTER_MAX, settings.dead_after))
    if dead_after < 2 * heartbeat:
        raise Problem("invalid", "dead_after_seconds: one late heartbeat must not end a worker; at least two of them")
    tasks: list[TaskEntry] = _converted(body.tasks or [], list[TaskEntry], "tasks")
    for entry in tasks:
        _check_entry(entry, app)
    names = {entry.name for entry in tasks}
    limits = _converted(body.limits or {}, dict[str, dict[str, LimitRule]], "limits")
    if stray := sorted(limits.keys() - names):
        raise Problem("invalid", f"limits: {stray[0]!r} is not among the tasks")
    crons = _converted(body.crons or [], list[CronDocument], "crons")
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
        tasks=None if body.tasks is None else tasks,
        limits=rules,
        crons=crons,
        heartbeat_ms=_ms(heartbeat),
        lease_ms=_ms(dead_after),
        confirm_ms=_ms(settings.confirm),
        grace_ms=_ms(body.grace_seconds),
    )


def _converted(value: Any, kind: Any, what: str) -> Any:
    try:
        msgspec.json.encode(value)  # As it will be kept: half a letter, say, no store holds.
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as problem:
        raise Problem("invalid", f"{what}: {problem}") from None


def _check_entry(entry: TaskEntry, app: Headway) -> None:
    """Refuse what would trouble readers of the catalogue: names and numbers beyond all bounds."""
    texts = [entry.name, entry.lane, entry.executor, *entry.needs, entry.fair_by or "-", entry.duration or "-"]
    if entry.name == ANY or any(not text or len(text) > TEXT_MAX or "\0" in text for text in texts):
        raise Problem("invalid", f"tasks: a name has 1 to {TEXT_MAX} letters, none of them NUL, and is not {ANY!r}")
    numbers = [entry.max_retries or 0, entry.timeout_ms or 0, *(entry.retry[1:3] if entry.retry else ())]
    if entry.timeout_ms == 0 or any(not 0 <= number <= LARGEST for number in numbers):
        raise Problem("invalid", f"tasks: {entry.name}: its timeout or retries are out of bounds")
    if entry.retry is not None and not 0 <= entry.retry.jitter <= 1:
        raise Problem("invalid", f"tasks: {entry.name}: jitter is a part, from 0 to 1")
    if len(msgspec.json.encode(entry)) > ENTRY_MAX:
        raise Problem("invalid", f"tasks: {entry.name}: it is described in more than {ENTRY_MAX:,} bytes")
    _limits(entry.name, entry.limits)
    try:
        task_from_catalogue(app, entry)  # As for every submit over HTTP from now on.
    except ConfigError:
        pass  # It does not fit the policy, which may change; who submits it is told.
    except Exception as problem:
        raise Problem("invalid", f"tasks: {entry.name}: its parameters are not described well") from problem


def _limits(task: str, rules: Iterable[LimitRule]) -> dict[str, LimitRule]:
    """Read the limits that a task declares. They are its own, whatever name and tasks the worker gave them."""
    try:
        found = [Limit.of(rule) for rule in rules]
    except (ConfigError, ZeroDivisionError) as problem:
        raise Problem("invalid", f"limits: {task}: {problem}") from None
    if any(max(one.concurrency or 0, one.burst or 0) > LARGEST for one in found):
        raise Problem("invalid", f"limits: {task}: a limit is out of bounds")
    return {one.name(task): one.rule(task) for one in found}


def check_tasks(new: NewWorker, patterns: tuple[str, ...] | None) -> None:
    """Refuse a worker that names tasks which its token is not for. Raises ``Problem``."""
    for entry in new.tasks or ():
        if patterns is not None and not covers(patterns, entry.name):
            raise Problem(
                "forbidden", f"this token is for the tasks {', '.join(patterns)[:TEXT_MAX]}, not for {entry.name!r}"
            )


def _check_cron_keys(cron: CronDocument, limits: set[str]) -> None:
    """Refuse a cron whose jobs would count as another tenant's, or hold keys of other tasks."""
    if cron.tenant is not None:
        raise Problem("invalid", f"crons: {cron.task}: a cron that comes over HTTP cannot have a tenant")
    if cron.unique_key is not None and not is_unique_key(cron.unique_key, cron.task):
        raise Problem("invalid", f"crons: {cron.task}: unique_key must be the task's name, a colon and 32 hex digits")
    known = {counter_name(name) for name in limits}
    for key in cron.limits:
        name, _, value = key.partition("=")
        if name not in known or "=" in value:  # What stands before another one is a tenant.
            raise Problem("invalid", f"crons: {cron.task}: {key[:TEXT_MAX]!r} is no limit of this task")


def _check_cron(cron: CronDocument, names: set[str], largest: int) -> None:
    if cron.task not in names:
        raise Problem("invalid", f"crons: {cron.task!r} is not among the tasks")
    try:
        parse_cron(cron.expression, cron.tz)
        if names_server(cron.payload):
            raise Problem("invalid", f"crons: {cron.task}: no task has a parameter {SESSION!r}")
    except (ValueError, msgspec.DecodeError) as problem:
        raise Problem("invalid", f"crons: {cron.task}: {problem}") from None
    if cron.rung == INTERACTIVE:
        raise Problem("invalid", f"crons: {cron.task}: an interactive task has no cron, since no client would be there")
    # Every worker that knows the task makes jobs of this as it stands: what no store keeps would stop them all.
    given = [cron.lane, *cron.needs, *cron.limits, cron.unique_key or "-", cron.rung or "-", cron.tenant or "-"]
    if any(not text or len(text) > KEY_MAX or "\0" in text for text in given):
        raise Problem("invalid", f"crons: {cron.task}: its texts have 1 to {KEY_MAX:,} letters, none of them NUL")
    numbers = [cron.max_retries, *(cron.retry[1:3] if cron.retry else ())]
    within = 0 < cron.timeout_ms <= LARGEST and all(0 <= number <= LARGEST for number in numbers)
    if len(cron.payload) > largest or not within or (cron.retry is not None and not 0 <= cron.retry.jitter <= 1):
        raise Problem("invalid", f"crons: {cron.task}: its payload, timeout or retries are out of bounds")


# ---------------------------------------------------------------------- what a worker says


def read_poll(body: shapes.PollBody, registered: Sequence[str], largest: int) -> PollOptions:
    """Read a poll. Raises ``Problem`` if it offers what was not registered."""
    offered = None if body.capabilities is None else frozenset(body.capabilities)
    if offered is not None and (stray := sorted(offered.difference(registered))):
        raise Problem("invalid", f"capabilities: {stray[0]!r} was not registered")
    return PollOptions(
        free=body.available_capacity,
        below=body.below,
        capabilities=None if offered == frozenset(registered) else offered,
        wait=body.wait_seconds,
        claim_id=body.claim_id,
        takes_over=body.takes_over,
        ended=[read_result(result, largest) for result in body.results],
        steps=[
            ReportedProgress(JobId(one.task_id), one.fraction, one.note, _token(one.fence)) for one in body.progress
        ],
    )


def read_result(result: shapes.ResultBody, largest: int) -> ReportedOutcome:
    """Read how an attempt ended; a result of more bytes than ``largest`` is not kept."""
    return ReportedOutcome(JobId(result.task_id), _ending(result, largest), _token(result.fence), result.seconds)


def read_output(body: shapes.OutputBody) -> tuple[JobId, bytes | None, list[Chunk]]:
    """Read the output of a running task; what no store holds becomes an escape. Raises ``Problem``."""
    if sum(len(chunk.text) for chunk in body.chunks) > KEPT_MAX:
        raise Problem("invalid", f"chunks: at most {KEPT_MAX:,} characters in all, the latest ones")
    chunks = [Chunk(one.at, one.stream, one.offset, _cut(one.text, KEPT_MAX)) for one in body.chunks]
    return JobId(body.task_id), _token(body.fence), chunks


def read_held(tasks: Sequence[shapes.HeldTask] | None) -> list[tuple[JobId, bytes | None]] | None:
    """Read which tasks a worker has; None: it does not say."""
    return None if tasks is None else [(JobId(one.task_id), _token(one.fence)) for one in tasks]


def _ending(result: shapes.ResultBody, largest: int) -> Ending:
    after_ms = None if result.retry_after_seconds is None else min(_ms(result.retry_after_seconds), DELAY_MS_MAX)
    reason = None if result.reason is None else _cut(result.reason, TEXT_MAX)
    match result.status:
        case "completed":
            return _returned(result, largest)
        case "failed":
            error = _error(result.error, "Error", reason or "the worker gave no reason")
            return Raised(error, after_ms, _partial(result, largest))
        case "timed_out":
            error = _error(result.error, "TimeoutError", reason or "the time limit has passed")
            return TimedOut(error, _partial(result, largest))
        case "cancelled":
            return Stopped() if reason is None else Stopped(reason)
        case "released":
            return Released() if reason is None else Released(reason)
        case "snoozed":
            return Snoozed(after_ms or 0) if reason is None else Snoozed(after_ms or 0, reason)
        case "crashed":
            return Crashed(reason or "the worker said that it crashed")
        case "unknown_task":
            return Unknown()
        case _ as never:
            assert_never(never)


def _returned(result: shapes.ResultBody, largest: int) -> Returned:
    """Encode a result. One that cannot be stored does not undo the work: the task completes, and says so."""
    if result.result_error is not None:
        return Returned(None, _cut(result.result_error, MESSAGE_MAX))
    try:
        return Returned(encode_result(result.result, typed=False, largest=largest))
    except PayloadError as problem:
        return Returned(None, _cut(str(problem), MESSAGE_MAX))


def _partial(result: shapes.ResultBody, largest: int) -> bytes | None:
    """Encode what an attempt had got when it failed; None if its worker sent nothing."""
    return _returned(result, largest).result if "result" in result.model_fields_set else None


def _error(given: shapes.FailureBody | None, kind: str, message: str) -> JobError:
    if given is None:
        return JobError(kind, message)
    traceback = _cut(given.traceback or "", TRACEBACK_MAX)
    named = kind if given.type == "Error" else _cut(given.type, TEXT_MAX)
    return JobError(named, _cut(given.message or message, MESSAGE_MAX), traceback, given.retriable)


def _cut(text: str, most: int) -> str:
    """Keep both ends of a long text; what no encoding or store holds becomes an escape."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n… {len(text) - most:,} characters left out …\n{text[-most // 2 :]}"
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _token(fence: str | None) -> bytes | None:
    """Read a fence. One that no server wrote becomes a token that no lease has."""
    if fence is None:
        return None
    try:
        token = bytes.fromhex(fence)
    except ValueError:
        token = b"?"
    if len(token) in (0, TOKEN_BYTES):
        return token
    return hashlib.blake2b(fence.encode("utf-8", "replace"), digest_size=TOKEN_BYTES).digest()


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1_000))


# ---------------------------------------------------------------------- what it is given


def given_tasks(leases: Sequence[Lease]) -> tuple[list[LeasedTask], list[Lease]]:
    """Shape tasks, their parameters byte for byte as they are stored; and name those that this release cannot read."""
    given, unreadable = [], []
    for lease in leases:
        parameters = _parameters(lease)
        if parameters is None:
            unreadable.append(lease)
        else:
            given.append(_given(lease, parameters))
    return given, unreadable


async def vouched(leases: Sequence[Lease], addresses: AddressSigner) -> tuple[list[Lease], list[Lease]]:
    """Part leases into those to hand out and sessions whose server's address was not signed: no worker dials that."""
    good, bad = [], []
    for lease in leases:
        signed = split_server(lease.payload)[1] if lease.rung == INTERACTIVE else None
        try:
            if signed is not None:
                await addresses.check(signed)
            good.append(lease)
        except AddressRefused:
            bad.append(lease)
    return good, bad


def unreadable(lease: Lease) -> ReportedOutcome:
    """Return the failure of a task whose arguments cannot be read."""
    error = JobError("PayloadError", "its arguments cannot be read by this server", retriable=False)
    return ReportedOutcome(lease.job_id, Raised(error), lease.token)


def _parameters(lease: Lease) -> bytes | None:
    try:
        body = payload_body(lease.payload)
        _read_object(body)
    except (PayloadError, msgspec.DecodeError):
        return None
    return bytes(body)


def _given(lease: Lease, parameters: bytes) -> LeasedTask:
    retry: Mapping[str, Any] | None = None if lease.retry is None else lease.retry._asdict()
    return LeasedTask(
        task_id=lease.job_id,
        task_type=lease.task,
        parameters=msgspec.Raw(parameters),
        timeout_seconds=lease.limit_ms / 1_000,
        trace_id=trace_of(lease),
        fence=lease.token.hex(),
        epoch=lease.epoch,
        attempt=lease.attempts,
        max_retries=lease.max_retries,
        priority=lease.lane,
        tenant=lease.tenant,
        lease=LeaseDetails(
            seq=lease.seq,
            crashes=lease.crashes,
            timeout_ms=lease.timeout_ms,
            asked_timeout_ms=lease.asked_timeout_ms,
            budget_ms=lease.budget_ms,
            retry=None if retry is None else dict(retry),
            started_at=lease.started_at,
            needs=lease.needs,
            rung=lease.rung,
            assigned=lease.assigned,
            cancel_requested=lease.cancel_requested,
            trace_id=lease.trace_id,
            submitted_at=lease.submitted_at,
            eligible_at=lease.eligible_at,
        ),
    )
