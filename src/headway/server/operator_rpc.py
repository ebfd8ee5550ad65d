"""What operators' commands ask of a server that stands before the store: verbs of the store, one request each.

Only commands of the same release speak so; the REST interface is for everybody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, assert_never

import msgspec

from headway.core.errors import ConfigError
from headway.core.job import JobId, JobRecord, State
from headway.estimates.history import LEARNED
from headway.metrics.documents import METRICS
from headway.observability.job_output import OUTPUT
from headway.policy_store.catalogue import CRONS
from headway.policy_store.rule_documents import PAUSES, POLICY
from headway.policy_store.versions import check_kept
from headway.stores.base import FORMAT, POLICIES, RULES, JobQuery, Store
from headway.stores.paging import find_in_steps, get_in_steps
from headway.stores.rule_codec import read_rules
from headway.version import __version__

PATH = "/internal/operate"
IDS_MAX = 500
PAGE_MAX = 100  # Jobs of one answer,
PAGE_BYTES = 3 << 20  # which ends with the job that reaches this; in the answer they take a third more.
NUMBER_MAX = 1 << 53  # Beyond it some stores count no longer one by one.
# Kinds that may be read. Only policies, the number of the policy in force, and pauses may be written.
DOCUMENTS = (POLICIES, RULES, METRICS, LEARNED, CRONS, OUTPUT)


class Get(msgspec.Struct, frozen=True):
    job_ids: list[JobId]


class Find(msgspec.Struct, frozen=True):
    query: JobQuery


class GetStats(msgspec.Struct, frozen=True):
    pass


class GetStanding(msgspec.Struct, frozen=True):
    job_id: JobId


class Greet(msgspec.Struct, frozen=True):
    """Ask whom one speaks to, and what time it is there."""


class Read(msgspec.Struct, frozen=True):
    kind: str
    name: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    job_ids: list[JobId]
    reason: str = "cancelled"


class RetryCommand(msgspec.Struct, frozen=True):
    job_ids: list[JobId]


class Purge(msgspec.Struct, frozen=True):
    states: list[State]
    job_ids: list[JobId] | None
    limit: int


class DrainCommand(msgspec.Struct, frozen=True):
    worker_id: str


class Write(msgspec.Struct, frozen=True):
    kind: str
    name: str
    body: bytes | None
    if_version: int | None = None


class Greeting(msgspec.Struct, frozen=True):
    """Who answers, and the store's time."""

    now_at: int
    format: int
    version: str


class Jobs(msgspec.Struct, frozen=True):
    """Jobs that were read or found, in order. ``more``: the answer is full, ask for the rest."""

    jobs: list[JobRecord | None]
    more: bool = False


Looking = Get | Find | GetStats | GetStanding | Greet | Read
Changing = Cancel | RetryCommand
Ruling = Purge | DrainCommand | Write
Question = Looking | Changing | Ruling

# By the scope that they need: the last part of the path, and what is asked.
LOOKING: dict[str, type[Looking]] = {
    "get": Get,
    "find": Find,
    "stats": GetStats,
    "standing": GetStanding,
    "greet": Greet,
    "read": Read,
}
CHANGING: dict[str, type[Changing]] = {"cancel": Cancel, "retry": RetryCommand}
RULING: dict[str, type[Ruling]] = {"purge": Purge, "drain": DrainCommand, "write": Write}

_PATHS = {
    asked: f"{PATH}/{family}/{name}"
    for family, verbs in (("look", LOOKING), ("change", CHANGING), ("rule", RULING))
    for name, asked in verbs.items()
}


def path_of(question: Question) -> str:
    """Return the path that a question is posted to."""
    return _PATHS[type(question)]


async def perform(store: Store, question: Question) -> Any:
    """Do what was asked. Raises ``ConfigError`` for what is out of bounds."""
    match question:
        case Get(job_ids):
            return await _page(get_in_steps(store.get, _bounded(job_ids)))
        case Find(query):
            if not 1 <= query.limit <= PAGE_MAX:
                raise ConfigError(f"a page holds 1 to {PAGE_MAX} jobs")
            return await _page(find_in_steps(store.find, query))
        case GetStats():
            return await store.stats()
        case GetStanding(job_id):
            return await store.diagnose_job(job_id)
        case Greet():
            return Greeting((await store.snapshot()).now_at, FORMAT, __version__)
        case Read(kind, name):
            if kind not in DOCUMENTS:
                raise ConfigError(f"documents of kind {kind[:60]!r} are not read over HTTP")
            return await store.read(kind, name)
        case Cancel(job_ids, reason):
            return await store.cancel(_bounded(job_ids), reason[:200])
        case RetryCommand(job_ids):
            return await store.retry(_bounded(job_ids))
        case Purge(states, job_ids, limit):
            if not 1 <= limit <= IDS_MAX:
                raise ConfigError(f"at most {IDS_MAX} jobs are removed at a time")
            return await store.purge(states, None if job_ids is None else _bounded(job_ids), limit=limit)
        case DrainCommand(worker_id):
            return await store.drain(worker_id)
        case Write(kind, name, body, if_version):
            _check_document(kind, name, body)
            return await store.write(kind, name, body, if_version=if_version)
        case _:
            assert_never(question)


async def _page(jobs: AsyncIterator[JobRecord | None]) -> Jobs:
    """Read jobs until an answer is full."""
    found: list[JobRecord | None] = []
    size = 0
    async for job in jobs:
        if size >= PAGE_BYTES:
            return Jobs(found, more=True)
        found.append(job)
        size += 0 if job is None else _size(job)
    return Jobs(found)


def _size(job: JobRecord) -> int:
    """Return about how many bytes of a job its submitter and its worker chose."""
    errors = [job.error, *(attempt.error for attempt in job.history)]
    texts = sum(len(error.message) + len(error.traceback) for error in errors if error is not None)
    return len(job.payload) + len(job.result or b"") + texts


def check_question(question: Question) -> None:
    """Refuse texts and numbers that some store cannot hold. Raises ``ConfigError``."""
    _check_values(msgspec.structs.astuple(question))


def _check_values(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, str) and "\0" in value:
            raise ConfigError("a text must not hold NUL")
        if isinstance(value, int) and abs(value) > NUMBER_MAX:
            raise ConfigError("a number is out of bounds")
        if isinstance(value, (list, tuple)):
            _check_values(value)


def _bounded(job_ids: list[JobId]) -> list[JobId]:
    if len(job_ids) > IDS_MAX:
        raise ConfigError(f"at most {IDS_MAX} jobs at a time")
    return job_ids


def _check_document(kind: str, name: str, body: bytes | None) -> None:
    """Let through only what workers can read. What tasks declare and what they cost is not for operators to write."""
    if body is None or ((kind, name) not in ((RULES, PAUSES), (RULES, POLICY)) and kind != POLICIES):
        raise ConfigError(f"the document {kind[:60]!r} {name[:60]!r} is not written over HTTP")
    if kind == POLICIES:
        check_kept(name, body)
        return
    try:
        read_rules(body)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise ConfigError(f"these rules cannot be read: {problem}") from problem
