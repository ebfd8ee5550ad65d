"""Turns values into the records that the scripts keep, and back. ``layout.py`` defines the layouts."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from headway.core.errors import JobError, PayloadError
from headway.core.job import Attempt, ClassKey, JobId, JobRecord, NewJob, RetryRule, State
from headway.core.lease import Lease, Report
from headway.core.policy.document import Ladder
from headway.core.policy.ladder import budget_of
from headway.core.policy.retry import heed_cancel
from headway.core.worker import WorkerInfo, WorkerState
from headway.stores.base import Progress
from headway.stores.redis.layout import (
    ATTEMPT,
    BLOCKED,
    JOB,
    LEASE,
    NEW_JOB,
    NOTES,
    OUTCOME,
    REPORT,
    REQUEUE,
    JobFlag,
    LeaseFlag,
    RequeueFlag,
    read_text,
)
from headway.stores.texts import escape_error, escape_surrogates
from headway.stores.unreadable import DAMAGE, read_or, read_worker_state, why_unreadable

BASE = 10**15  # Added to sequence numbers and order keys, so that all have 16 digits.
NO_TOKEN = bytes(16)
ID_BYTES = 255
BLOB_BYTES_MAX = 60_000  # Bytes. A requeue is stored behind a length of two bytes, so it must stay below 65,536,
TEXT_MAX = 3_500  # and longer blobs keep this many letters of each text: at most four texts of four bytes a letter.

_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_MEMBER = struct.Struct("16s")
_HEAD = slice(JOB.at("flags"), JOB.size)
# Jobs with an id as Headway makes them, and no extras but a tenant, limits and a batch, are read in one step: the
# moment of the submit, the id, the length of the tail.
_USUAL = {
    NEW_JOB.pack(extras | marks, 36): extras
    for extras in range((JobFlag.TENANT | JobFlag.LIMITS | JobFlag.BATCH) + 1)
    for marks in (0, JobFlag.WAITS, JobFlag.SOURCE, JobFlag.WAITS | JobFlag.SOURCE)
}
_TENANT, _LIMITS, _BATCH = JobFlag.TENANT, JobFlag.LIMITS, JobFlag.BATCH  # Read for each job of a claim.
_usual = struct.Struct(f">15s{JOB.size - JOB['submitted'].stop}x36sI")
_read_usual, _USUAL_END = _usual.unpack_from, _usual.size
_read_short = _SHORT.unpack_from
_as_lease = Lease._make

_encode = msgspec.msgpack.Encoder().encode
_read_body = msgspec.msgpack.Decoder(tuple[int, int, RetryRule | None]).decode
_read_ending = msgspec.msgpack.Decoder(
    tuple[bytes | None, str | None, str | None, JobError | None, int, int]
).decode  # fmt: skip
_read_back = msgspec.msgpack.Decoder(tuple[JobError | None, str | None]).decode
_read_attempt = msgspec.msgpack.Decoder(tuple[str, JobError | None]).decode
_read_progress = msgspec.msgpack.Decoder(tuple[float, str | None]).decode
_read_worker = msgspec.msgpack.Decoder(tuple[str, str, int, int, int, tuple[str, ...], str, int]).decode

LETTERS: Mapping[State, str] = {
    State.QUEUED: "Q",
    State.EXECUTING: "E",
    State.COMPLETED: "C",
    State.FAILED: "F",
    State.CANCELLED: "X",
    State.DEAD_LETTER: "D",
}
STATES: Mapping[bytes, State] = {letter.encode(): state for state, letter in LETTERS.items()}


def _pack(value: tuple[Any, ...]) -> bytes:
    """Write a tuple. Lone surrogates in the texts of a running job become escapes."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(tuple(map(_escaped, value)))


def _escaped(value: Any) -> Any:
    if isinstance(value, JobError):
        return escape_error(value)
    return escape_surrogates(value) if isinstance(value, str) else value


def member(seq: int) -> bytes:
    """Return the name of a job in the scripts."""
    return b"%d" % (BASE + seq)


# ---------------------------------------------------------------------- classes


@lru_cache(maxsize=1_024)
def class_text(key: ClassKey) -> bytes:
    return "\0".join((key.lane, key.rung or "", "1" if key.persist else "0", *sorted(key.needs))).encode()


@lru_cache(maxsize=1_024)
def class_key(text: bytes) -> ClassKey:
    try:
        lane, rung, persist, *needs = text.decode().split("\0")
    except ValueError:  # The text is damaged.
        return ClassKey(text.decode(errors="backslashreplace"))
    return ClassKey(lane, tuple(needs), rung or None, persist == "1")


# ---------------------------------------------------------------------- submitting


@lru_cache(maxsize=1_024)
def _body(max_retries: int, timeout_ms: int, retry: RetryRule | None) -> bytes:
    return _pack((max_retries, timeout_ms, retry))


@lru_cache(maxsize=1_024)
def _name(text: str) -> bytes:
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw


def _text(text: str) -> bytes:
    return _raw(text.encode())


def _raw(raw: bytes) -> bytes:
    if len(raw) > 0xFFFF:
        raise PayloadError("a name, key or limit is longer than 65,535 bytes")
    return _SHORT.pack(len(raw)) + raw


def pack_jobs(jobs: Sequence[NewJob]) -> list[bytes | str | int]:
    """Write jobs as the arguments of ``submit``: their classes, then a record for each."""
    kinds: dict[bytes, int] = {}
    places: list[int] = []
    packed: list[bytes] = []
    rest, terms, kind = None, _JobFields(0, b"", b"", b""), 0
    task, name = "", b""
    for job in jobs:
        if job[3:] != rest:  # The jobs of one call share it, so it is packed once.
            rest = job[3:]
            terms = _terms(job)
            kind = kinds.setdefault(terms.kind, len(kinds) + 1)
        flags, _, extras, body = terms
        job_id, named, payload = job[:3]
        if named != task:
            task, name = named, _name(named)
        places.append(kind)
        raw_id = job_id.encode()
        if len(raw_id) > ID_BYTES:
            raise PayloadError(f"a job's id has at most {ID_BYTES} bytes, this one has {len(raw_id)}")
        size = _LONG.pack(len(name) + len(payload))
        packed.append(b"".join((NEW_JOB.pack(flags, len(raw_id)), raw_id, size, extras, body, name, payload)))
    return [len(kinds), *kinds, struct.pack(f">{len(places)}H", *places), *packed]


def pack_deferred(packed: Sequence[bytes | str | int]) -> bytes | None:
    """Write the result of ``pack_jobs`` as a deferred submit, if it is one job without any options."""
    if len(packed) != 4:
        return None
    _, kind, _, record = packed
    if not isinstance(kind, bytes) or not isinstance(record, bytes) or len(kind) > 0xFFFF or NEW_JOB.unpack(record)[0]:
        return None
    return _SHORT.pack(len(kind)) + kind + record


class _JobFields(NamedTuple):
    """The part of a record without id, task and payload."""

    flags: int
    kind: bytes
    extras: bytes
    body: bytes


def _terms(job: NewJob) -> _JobFields:
    flags = 0
    extras = b""
    if job.tenant is not None:
        flags, extras = JobFlag.TENANT, _text(job.tenant)
    if job.limits:
        flags, extras = flags | JobFlag.LIMITS, extras + _raw(b"".join(map(_text, job.limits)))
    if job.expires_ms is not None:
        flags, extras = flags | JobFlag.EXPIRES, extras + b"%015d" % job.expires_ms
    if job.unique_key is not None:
        flags, extras = flags | JobFlag.UNIQUE, extras + _text(job.unique_key)
    if job.idempotency_key is not None:
        flags |= JobFlag.KEYED
        extras += _text(job.idempotency_key) + _raw(job.digest) + b"%015d" % job.idempotency_ms
    if job.delay_ms or job.due_at is not None:
        flags |= JobFlag.TIMED
        extras += b"%015d%015d" % (max(job.due_at or 0, 0), max(job.delay_ms, 0))
    if job.trace_id is not None:
        flags, extras = flags | JobFlag.TRACE, extras + _text(job.trace_id)
    if not job.persist:
        flags |= JobFlag.TRANSIENT
    return _JobFields(flags, class_text(job.class_key), extras, _body(job.max_retries, job.timeout_ms, job.retry))


class StaticFields(NamedTuple):
    """The fields of a job that never change."""

    submitted_at: int
    job_id: JobId
    task: str
    payload: bytes
    max_retries: int
    timeout_ms: int
    retry: RetryRule | None
    tenant: str | None
    trace_id: str | None
    limits: tuple[str, ...]
    expires_at: int | None
    unique_key: str | None
    idempotency_key: str | None
    batch_id: str | None = None


@lru_cache(maxsize=1_024)
def _known_body(raw: bytes) -> tuple[int, int, RetryRule | None]:
    return _read_body(raw)


@lru_cache(maxsize=1_024)
def _known_name(raw: bytes) -> str:
    return raw.decode()


@lru_cache(maxsize=1_024)
def _known_terms(raw: bytes, body: int) -> tuple[int, int, RetryRule | None, str]:
    """Read a body of this many bytes, and the name of the task behind it."""
    return (*_known_body(raw[:body]), _known_name(raw[body + 2 :]))


class _Cursor:
    """Reads the texts and numbers of a record one after the other."""

    def __init__(self, record: bytes, at: int) -> None:
        self.record, self.at = record, at

    def raw(self) -> bytes:
        found, self.at = read_text(self.record, self.at)
        return found

    def text(self) -> str:
        return self.raw().decode()

    def number(self) -> int:
        self.at += 15
        return int(self.record[self.at - 15 : self.at])


def read_record(record: bytes) -> StaticFields:
    submitted, _, flags, id_length = JOB.unpack(record)
    stop = JOB.size + id_length
    submitted_at = int(submitted)
    job_id = JobId(record[JOB.size : stop].decode())
    tail = len(record) - int.from_bytes(record[stop : stop + 4], "big")
    start = stop + 4
    tenant = trace_id = unique_key = idempotency_key = expires_at = batch_id = None
    limits: tuple[str, ...] = ()
    if flags:
        cursor = _Cursor(record, start)
        if flags & JobFlag.TENANT:
            tenant = cursor.text()
        if flags & JobFlag.LIMITS:
            limits = _texts(cursor.raw())
        if flags & JobFlag.BATCH:
            batch_id = cursor.text()
        if flags & JobFlag.EXPIRES:
            expires_at = submitted_at + cursor.number()
        if flags & JobFlag.UNIQUE:
            unique_key = cursor.text()
        if flags & JobFlag.KEYED:
            idempotency_key = cursor.text()
            cursor.raw()
            cursor.at += 15
        if flags & JobFlag.TIMED:
            cursor.at += 30
        if flags & JobFlag.TRACE:
            trace_id = cursor.text()
        start = cursor.at
    max_retries, timeout_ms, retry = _known_body(record[start:tail])
    name, payload = read_text(record, tail)
    return StaticFields(
        submitted_at, job_id, _known_name(name), record[payload:], max_retries, timeout_ms, retry,
        tenant, trace_id, limits, expires_at, unique_key, idempotency_key, batch_id,
    )  # fmt: skip


def try_record(record: bytes) -> tuple[StaticFields, str | None]:
    """Read a record. Return the fields, and why the record is unreadable or None."""
    try:
        return read_record(record), None
    except DAMAGE as problem:
        stop = JOB.size + (record[JOB.at("id_length")] if len(record) >= JOB.size else 0)
        job_id = JobId(record[JOB.size : stop].decode(errors="replace"))
        submitted_at = read_or(0, lambda: int(record[JOB["submitted"]]))
        unreadable = StaticFields(submitted_at, job_id, "", record, 0, 0, None, None, None, (), None, None, None)
        return unreadable, why_unreadable(problem)


def _texts(raw: bytes) -> tuple[str, ...]:
    cursor, found = _Cursor(raw, 0), []
    while cursor.at < len(raw):
        found.append(cursor.text())
    return tuple(found)


# ---------------------------------------------------------------------- leases


class LeaseRecord(NamedTuple):
    """The fields of a lease."""

    token: bytes
    epoch: int
    attempts: int
    crashes: int
    started_at: int
    eligible_at: int
    timeout_ms: int
    worker_id: str
    assigned: str | None
    parked_for: str | None
    parked_ms: int
    held: tuple[str, ...]


def try_held(record: bytes) -> tuple[LeaseRecord, str | None]:
    """Read a lease. Return the fields, and why the record is unreadable or None."""
    try:
        return read_held(record), None
    except DAMAGE as problem:
        return LeaseRecord(record[LEASE["token"]], 0, 0, 0, 0, 0, 0, "", None, None, 0, ()), why_unreadable(problem)


def read_held(record: bytes) -> LeaseRecord:
    token, epoch, attempts, crashes, started, eligible, _, _, timeout, flags = LEASE.unpack(record)
    cursor = _Cursor(record, LEASE.size)
    worker_id = cursor.text()
    if flags & LeaseFlag.FAIR:
        cursor.raw()
    if flags & LeaseFlag.BATCH:
        cursor.raw()
    assigned = parked_for = None
    parked_ms = 0
    held: tuple[str, ...] = ()
    if flags & LeaseFlag.TERMS:
        assigned, parked_for = cursor.text() or None, cursor.text() or None
        parked_ms = int(cursor.raw() or 0)
        held = _texts(record[cursor.at :])
    return LeaseRecord(
        token, epoch, attempts, crashes, int(started), int(eligible), int.from_bytes(timeout, "big"), worker_id,
        assigned, parked_for, parked_ms, held,
    )  # fmt: skip


class LeasedJobs(NamedTuple):
    """The leases of an exchange.

    They are the jobs, their members in one text, the leases that are not a first attempt (index, lease, ...), and their
    classes and rungs (text, how many in a row, the rung assigned or nothing, ...).
    """

    records: Sequence[bytes]
    members: bytes
    others: Sequence[bytes]
    runs: Sequence[bytes]


def fresh_leases(
    given: LeasedJobs, token: bytes, worker_id: str, now_at: int, ladder: Ladder
) -> list[Lease]:  # fmt: skip
    leases: list[Lease] = []
    replies, members, others, runs = given
    held_at = {int(others[at]): others[at + 1] for at in range(0, len(others), 2)}
    seqs = [int(member) - BASE for (member,) in _MEMBER.iter_unpack(members)]
    at = 0
    for run in range(0, len(runs), 3):
        key = class_key(runs[run])
        lane, needs, rung, persist = key
        assigned = runs[run + 2].decode() or None
        budget_ms = budget_of(ladder, assigned)
        for _ in range(int(runs[run + 1])):
            record, seq, held = replies[at], seqs[at], held_at.get(at)
            at += 1
            if held is not None:
                leases.append(make_lease(seq, record, held, key, ladder))
                continue
            tenant = trace_id = batch_id = unreadable = None
            try:
                flags = _USUAL.get(record[_HEAD])
                if flags is not None:  # The same as ``read_record``, in one step.
                    submitted, raw_id, tail = _read_usual(record)
                    body, tail = _USUAL_END, len(record) - tail
                    if flags:
                        if flags & _TENANT:
                            start, body = body + 2, body + 2 + _read_short(record, body)[0]
                            tenant = record[start:body].decode()
                        if flags & _LIMITS:
                            body += 2 + _read_short(record, body)[0]
                        if flags & _BATCH:
                            start, body = body + 2, body + 2 + _read_short(record, body)[0]
                            batch_id = _known_name(record[start:body])
                    name = tail + 2 + _read_short(record, tail)[0]
                    job_id, submitted_at, payload = JobId(raw_id.decode()), int(submitted), record[name:]
                    max_retries, asked_ms, retry, task = _known_terms(record[body:name], tail - body)
                else:
                    fixed = read_record(record)
                    batch_id = fixed.batch_id
                    submitted_at, job_id, task, payload, max_retries, asked_ms, retry, tenant, trace_id = fixed[:9]
            except DAMAGE as problem:
                fixed, _ = try_record(record)
                submitted_at, job_id, task, payload, max_retries, asked_ms, retry, tenant, trace_id = fixed[:9]
                unreadable = why_unreadable(problem)
            if not persist:
                leases.append(
                    Lease(
                        job_id, seq, b"", task, payload, lane, tenant, trace_id, 1, 1, 0, 0, asked_ms, asked_ms, None,
                        now_at, False, needs, worker_id,
                    )
                )  # fmt: skip
            else:
                leases.append(
                    _as_lease(  # A first attempt: the job has waited since its submit.
                        (job_id, seq, token, task, payload, lane, tenant, trace_id, 1, 1, 0, max_retries, asked_ms,
                         asked_ms, retry, now_at, False, needs, worker_id, rung, assigned, budget_ms, submitted_at,
                         submitted_at, batch_id, unreadable)
                    )
                )  # fmt: skip
    return leases


def make_lease(
    seq: int, record: bytes, lease: bytes, key: ClassKey, ladder: Ladder, *, cancelled: bool = False
) -> Lease:  # fmt: skip
    fixed, why = try_record(record)
    held, why_held = try_held(lease)
    return Lease(
        fixed.job_id, seq, held.token, fixed.task, fixed.payload, key.lane, fixed.tenant, fixed.trace_id, held.epoch,
        held.attempts, held.crashes, fixed.max_retries, held.timeout_ms or fixed.timeout_ms, fixed.timeout_ms,
        fixed.retry, held.started_at, cancelled, key.needs, held.worker_id, key.rung, held.assigned,
        budget_of(ladder, held.assigned), fixed.submitted_at, held.eligible_at, fixed.batch_id, why or why_held,
    )  # fmt: skip


# ---------------------------------------------------------------------- reports


def pack_reports(reports: Sequence[Report]) -> list[bytes | str | int]:
    """Write reports as arguments of ``exchange``."""
    packed: list[bytes | str | int] = []
    for report in reports:
        token = report.token or NO_TOKEN
        if report.state is State.COMPLETED and report.error is None and not report.expired_only:
            body = _pack(
                (report.result, report.result_error, report.reason, None, report.attempts, report.crashes)
            )  # fmt: skip
            packed.append(member(report.seq))
            packed.append(REPORT.pack(token, b"C") + body)
            continue
        heeded = heed_cancel(report)
        packed += (
            member(report.seq),
            REPORT.pack(token, b"R"),
            LETTERS[report.state],
            _ending(report),
            _attempt(report),
            _ending(heeded),
            _attempt(heeded),
            _back_blob(report),
            "\0".join(report.needs),
            int(report.front),
            int(report.expired_only),
            report.delay_ms,
            report.attempts,
            report.crashes,
            report.timeout_ms,
            report.rung or "",
        )
    return packed


def _attempt(report: Report) -> bytes:
    return b"" if report.error is None else _pack((report.reason or report.state.value, report.error))


def _ending(report: Report) -> bytes:
    return _pack(
        (report.result, report.result_error, report.reason, report.error, report.attempts, report.crashes)
    )  # fmt: skip


def _back_blob(report: Report) -> bytes:
    """Write why a job goes back to the queue, within ``BLOB_BYTES_MAX``."""
    blob = _pack((report.error, report.reason))
    if len(blob) <= BLOB_BYTES_MAX:
        return blob
    error, reason = report.error, report.reason
    if error is not None:  # The history of the job has the full texts.
        kind, message, traceback = (part[:TEXT_MAX] for part in (error.type, error.message, error.traceback))
        error = JobError(kind, message, traceback, error.retriable)
    return _pack((error, None if reason is None else reason[:TEXT_MAX]))


def pack_progress(progress: Sequence[Progress]) -> list[bytes | str | int]:
    packed: list[bytes | str | int] = []
    for note in progress:
        packed += (member(note.seq), note.token, _pack((note.fraction, note.note and note.note[:TEXT_MAX])))
    return packed


# ---------------------------------------------------------------------- jobs


def read_job(pieces: Sequence[bytes], now_at: int) -> JobRecord:
    """Build a job from all its records. Of a damaged record, use the readable part."""
    name, record, letter, where, tries, due, parked, cancel, progress, kind = pieces
    fixed, unreadable = try_record(record)
    state, key = STATES.get(letter, State.FAILED), class_key(kind)
    parts: dict[str, Any] = {
        "timeout_ms": fixed.timeout_ms, "attempts": 0, "crashes": 0, "epoch": 0, "due_at": None,
        "eligible_at": fixed.submitted_at, "started_at": None, "finished_at": None, "cancel_requested_at": None,
        "worker_id": None, "progress": None, "note": None, "result": None, "result_error": None, "error": None,
        "reason": None,
    }  # fmt: skip
    expires_at = fixed.expires_at
    try:
        if state is State.QUEUED:
            if where:
                expires_at = None if where[REQUEUE.at("flags")] & RequeueFlag.NEVER_EXPIRES else expires_at
                parts |= _back(where, fixed)
            if due:
                parts["eligible_at"] = None
                parts |= {"held": True} if due == b"held" else {"due_at": int(due)}
            if parked:
                parts["blocked_by"] = parked[BLOCKED["limit"]].decode()
        elif state is State.EXECUTING:
            parts |= _run(where, fixed)
            expires_at = None if where[LEASE.at("flags")] & LeaseFlag.NEVER_EXPIRES else expires_at
            parts["assigned"] = read_held(where).assigned
            parts["cancel_requested_at"] = int(cancel) if cancel else None
            if progress:
                parts["progress"], parts["note"] = _read_progress(progress)
        else:
            ended, void = _ended(where, fixed)
            expires_at = None if void else expires_at
            parts |= ended
    except DAMAGE as problem:
        unreadable = unreadable or why_unreadable(problem)
    if unreadable is not None and parts["error"] is None:
        parts["error"] = JobError("UnreadableJob", unreadable, retriable=False)
    return JobRecord(
        job_id=fixed.job_id,
        seq=int(name) - BASE,
        task=fixed.task,
        payload=fixed.payload,
        state=state,
        lane=key.lane,
        needs=key.needs,
        rung=key.rung,
        tenant=fixed.tenant,
        max_retries=fixed.max_retries,
        retry=fixed.retry,
        submitted_at=fixed.submitted_at,
        expires_at=expires_at,
        idempotency_key=fixed.idempotency_key,
        unique_key=fixed.unique_key,
        trace_id=fixed.trace_id,
        history=read_or((), lambda: _history(tries)),
        limits=fixed.limits,
        batch_id=fixed.batch_id,
        seen_at=now_at,
        **parts,
    )


def _back(record: bytes, fixed: StaticFields) -> dict[str, Any]:
    _, epoch, attempts, crashes, eligible, _, _, _, timeout, _ = REQUEUE.unpack(record)
    error, reason = _read_back(record[REQUEUE["blob"]]) if len(record) > REQUEUE.size else (None, None)
    return {
        "epoch": epoch,
        "attempts": attempts,
        "crashes": crashes,
        "eligible_at": int(eligible) or None,
        "timeout_ms": int.from_bytes(timeout, "big") or fixed.timeout_ms,
        "error": error,
        "reason": reason,
    }


def _run(record: bytes, fixed: StaticFields) -> dict[str, Any]:
    held = read_held(record)
    return {
        "epoch": held.epoch,
        "attempts": held.attempts,
        "crashes": held.crashes,
        "eligible_at": held.eligible_at,
        "started_at": held.started_at,
        "timeout_ms": held.timeout_ms or fixed.timeout_ms,
        "worker_id": held.worker_id,
        "blocked_for": held.parked_for,
        "blocked_ms": held.parked_ms,
    }


def _ended(record: bytes, fixed: StaticFields) -> tuple[dict[str, Any], bool]:
    """Read an outcome. Return also whether the job could no longer expire."""
    _, finished, kind, length = OUTCOME.unpack(record)
    stop = OUTCOME.size + length
    what, rest = record[OUTCOME.size : stop], record[stop:]
    ended: dict[str, Any] = {"finished_at": int(finished)}
    if kind in (b"Q", b"-", b"~"):
        if kind == b"Q":
            ended |= _back(what, fixed)
        elif kind == b"~":
            ended["eligible_at"] = None
        ended["reason"] = rest.decode()
        return ended, kind == b"Q" and bool(what[REQUEUE.at("flags")] & RequeueFlag.NEVER_EXPIRES)
    ended |= _run(what, fixed)
    if kind == b"P":
        ended["cancel_requested_at"] = int(rest[NOTES["cancel_asked"]]) or None
        told, at = read_text(rest, NOTES.size)
        if told:
            ended["progress"], ended["note"] = _read_progress(told)
        rest = rest[at:]
    result, result_error, reason, error, attempts, crashes = _read_ending(rest)
    ended |= {
        "result": result, "result_error": result_error, "reason": reason, "error": error, "attempts": attempts,
        "crashes": crashes,
    }  # fmt: skip
    return ended, bool(what[LEASE.at("flags")] & LeaseFlag.NEVER_EXPIRES)


def read_result(outcome: bytes) -> bytes | None:
    """Return the result that a job ended with."""
    _, _, kind, length = OUTCOME.unpack(outcome)
    rest = outcome[OUTCOME.size + length :]
    if kind not in (b"E", b"P"):
        return None
    return _read_ending(rest[read_text(rest, NOTES.size)[1] :] if kind == b"P" else rest)[0]


def _history(tries: bytes) -> tuple[Attempt, ...]:
    found, at = [], 0
    while at < len(tries):
        stop = at + 4 + int.from_bytes(tries[at : at + 4], "big")
        entry = tries[at + 4 : stop]
        epoch, number, started, finished = ATTEMPT.unpack(entry)
        worker_id, blob = read_text(entry, ATTEMPT.size)
        reason, error = _read_attempt(entry[blob:])
        found.append(Attempt(number, epoch, worker_id.decode(), int(started), int(finished), reason, error))
        at = stop
    return tuple(found)


# ---------------------------------------------------------------------- workers


def pack_worker(worker: WorkerInfo) -> bytes:
    return _pack(
        (worker.worker_id, worker.host, worker.pid, worker.slots, worker.reserved, worker.offers, worker.version,
         worker.protocol)
    )  # fmt: skip


def read_worker(row: Sequence[bytes], now_at: int) -> WorkerInfo:
    blob, state, started_at, heartbeat_at, lease_ends_at, running = row
    worker_id, host, pid, slots, reserved, offers, version, protocol = _read_worker(blob)
    return WorkerInfo(
        worker_id=worker_id,
        host=host,
        pid=pid,
        slots=slots,
        reserved=reserved,
        offers=offers,
        version=version,
        protocol=protocol,
        state=WorkerState.DEAD if int(lease_ends_at) <= now_at else read_worker_state(state.decode()),
        started_at=int(started_at),
        heartbeat_at=int(heartbeat_at),
        lease_ends_at=int(lease_ends_at),
        running=int(running),
    )
