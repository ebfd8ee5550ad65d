"""The catalogue: what workers publish about their tasks, so that servers and clients need not import them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import msgspec

from headway.core.job import NewJob, RetryRule
from headway.core.policy.document import LimitRule
from headway.runtime.job_ids import new_job_id
from headway.stores.base import Document, Store
from headway.stores.unreadable import DocumentReader

TASKS = "task"
CRONS = "cron"
CRON_PAUSES = "cron_pause"  # A document of this kind and a cron's name exists while an operator has paused the cron.
DAMAGED = -1  # In place of the version of a damaged document, which must not be overwritten by a tick.


class TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task in the catalogue with its own options. None leaves the choice to the lane or the policy."""

    name: str
    lane: str
    executor: str
    needs: tuple[str, ...] = ()
    fair_by: str | None = None
    persist: bool = True
    max_retries: int | None = None
    timeout_ms: int | None = None
    retry: RetryRule | None = None
    duration: str | None = None
    limits: tuple[LimitRule, ...] = ()
    unique: bool = False
    unique_by: tuple[str, ...] | None = None  # The parameters that ``unique`` compares; None for all of them.
    redact: tuple[str, ...] = ()  # Parameters that logs, traces and the dashboard hide.
    parameters: dict[str, Any] = {}
    doc: str = ""


class CronDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A cron and the job that it submits. ``ticked_at`` is the last tick that was handled.

    ``entry`` tells several crons of one task apart. A task that declares its one cron has none.
    """

    task: str
    expression: str
    tz: str
    catch_up: str
    overlap: str
    lane: str
    max_retries: int
    timeout_ms: int
    payload: bytes
    needs: tuple[str, ...] = ()
    retry: RetryRule | None = None
    unique_key: str | None = None
    rung: str | None = None
    tenant: str | None = None
    limits: tuple[str, ...] = ()
    ticked_at: int = 0
    entry: str | None = None

    @property
    def name(self) -> str:
        """The name of the cron and of its document."""
        return self.task if self.entry is None else f"{self.task}.{self.entry}"


# The fields that a cron hands on to its jobs, by the same names.
JOB_FIELDS = (
    "lane", "max_retries", "timeout_ms", "payload", "needs", "retry", "unique_key", "rung", "tenant", "limits",
)  # fmt: skip
_encode = msgspec.json.Encoder().encode
decode_cron = msgspec.json.Decoder(CronDocument).decode
decode_task = msgspec.json.Decoder(TaskEntry).decode
encode_task = _encode


class TaskReader(DocumentReader[TaskEntry]):
    """Reads the entries of tasks."""

    def __init__(self) -> None:
        super().__init__(TASKS, decode_task)


class CronReader(DocumentReader[CronDocument]):
    """Reads crons."""

    def __init__(self) -> None:
        super().__init__(CRONS, decode_cron)


async def publish_tasks(store: Store, entries: list[TaskEntry]) -> None:
    """Write the entries that are new or have changed."""
    known = {document.name: document.body for document in await store.read(TASKS)}
    for entry in entries:
        body = _encode(entry)
        if known.get(entry.name) != body:
            await store.write(TASKS, entry.name, body)


async def read_tasks(store: Store, reader: TaskReader | None = None) -> list[TaskEntry]:
    """Read the catalogue. A damaged entry has its last good value, or is left out."""
    reader = reader or TaskReader()
    found = [reader.read(document.name, document.body) for document in await store.read(TASKS)]
    return [entry for entry in found if entry is not None]


async def publish_crons(
    store: Store,
    crons: list[CronDocument],
    known: Container[str],
    now_at: int,
    *,
    found: Sequence[Document] | None = None,
) -> None:
    """Write crons that are new or have changed, and remove crons with known names that are not among them.

    ``found``: the documents of the crons, if they were read earlier. One that has changed since then is left alone.

    A changed cron keeps its last tick. A new one, or one whose document is damaged, starts now, so earlier ticks are
    not caught up.
    """
    wanted, reader = {cron.name: cron for cron in crons}, CronReader()
    for document in await store.read(CRONS) if found is None else found:
        old = reader.read(document.name, document.body)
        new = wanted.pop(document.name, None)
        if new is None:
            if document.name in known:
                await store.write(CRONS, document.name, None, if_version=document.version)
        elif old is None or msgspec.structs.replace(old, ticked_at=0) != new:
            same_times = old is not None and (old.expression, old.tz) == (new.expression, new.tz)
            ticked_at = old.ticked_at if old is not None and same_times else now_at
            body = _encode(msgspec.structs.replace(new, ticked_at=ticked_at))
            await store.write(CRONS, document.name, body, if_version=document.version)
    for cron in wanted.values():
        await store.write(CRONS, cron.name, _encode(msgspec.structs.replace(cron, ticked_at=now_at)), if_version=0)


async def read_crons(store: Store, reader: CronReader | None = None) -> list[tuple[CronDocument, int]]:
    """Read all crons with the versions of their documents. A damaged one has its last good value, if any."""
    reader, found = reader or CronReader(), []
    for document in await store.read(CRONS):
        cron = reader.read(document.name, document.body)
        if cron is not None:
            found.append((cron, DAMAGED if document.name in reader.damaged else document.version))
    return found


async def mark_ticked(store: Store, cron: CronDocument, version: int, ticked_at: int) -> bool:
    """Record that a cron's ticks up to a moment were handled. Return False if another process did so first."""
    body = _encode(msgspec.structs.replace(cron, ticked_at=ticked_at))
    return await store.write(CRONS, cron.name, body, if_version=version) is not None


def cron_job(cron: CronDocument, key: str) -> NewJob:
    """Return the job of a cron. ``key`` tells its runs apart: a second submit with the same key changes nothing."""
    own: dict[str, Any] = {name: getattr(cron, name) for name in JOB_FIELDS}
    # No digest: the idempotency key already identifies the job.
    known_by = f"{cron_prefix(cron.name)}{key}"
    return NewJob(job_id=new_job_id(), task=cron.task, digest=b"", idempotency_key=known_by, **own)


def cron_prefix(name: str) -> str:
    """Return how the idempotency keys of a cron's jobs begin."""
    return f"cron:{name}:"


async def read_paused_crons(store: Store) -> set[str]:
    """Return the names of the crons that an operator has paused."""
    return {document.name for document in await store.read(CRON_PAUSES)}


async def pause_cron(store: Store, name: str) -> bool:
    """Stop a cron from submitting jobs. Return False if there is no such cron."""
    if not await store.read(CRONS, name):
        return False
    if not await store.read(CRON_PAUSES, name):
        await store.write(CRON_PAUSES, name, b"paused")
    return True


async def resume_cron(store: Store, name: str) -> bool:
    """Resume a cron, from its next tick on. Return False if there is no such cron.

    A process that ran meanwhile has marked the ticks in between as handled. Otherwise the cron's ``catch_up`` decides.
    """
    if not await store.read(CRONS, name):
        return False
    if await store.read(CRON_PAUSES, name):
        await store.write(CRON_PAUSES, name, None)
    return True
