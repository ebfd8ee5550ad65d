"""The store methods on a SQL database, each in a transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import Keep
from headway.core.policy.ladder import Preemption
from headway.core.preview import SubmitPreview
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerState
from headway.core.workflow import (
    BatchId,
    BatchQuery,
    BatchRecord,
    Step,
    Upstream,
)
from headway.stores.base import (
    POLICIES,
    RULES,
    Document,
    Heartbeat,
    HeartbeatReply,
    JobQuery,
    LaneStats,
    QueueBreakdown,
    Stats,
)
from headway.stores.sql import batch as batches
from headway.stores.sql import diagnose, finish, heartbeat, prune, sources, steps
from headway.stores.sql import query as reads
from headway.stores.sql.limits import adopt_rules
from headway.stores.sql.rows import Row
from headway.stores.sql.settle import hold_retried
from headway.stores.sql.transaction import Transaction
from headway.stores.texts import check_jobs, check_text, check_worker, is_writable

T = TypeVar("T")

Verb = Callable[[Transaction], Coroutine[Any, Any, T]]


class SqlStore(ABC):
    """The store methods that both SQL databases share. Subclasses define how a transaction begins."""

    def __init__(self, round_: prune.PruneRound) -> None:
        self._round = round_

    @abstractmethod
    def _write(self, verb: Verb[T], *, alone: bool = False, asker: str | None = None) -> Awaitable[T]:
        """Run a function in a write transaction. ``alone``: exclude other write transactions of the namespace."""

    @abstractmethod
    def _read(self, verb: Verb[T]) -> Awaitable[T]:
        """Run a function that only reads, in a transaction that sees one moment."""

    @abstractmethod
    async def _expired_leases(self, tx: Transaction, limit: int, payloads: bool) -> Sequence[Row]:
        """Return the leases whose worker is past its deadline, dead or no longer registered."""

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        check_worker(beat.worker)
        return await self._write(lambda tx: heartbeat.renew(tx, beat))

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000, payloads: bool = True) -> list[Lease]:
        check_text(worker_id or "", "a worker's id")

        async def read(tx: Transaction) -> list[Lease]:
            if worker_id is not None:
                found = await tx.db.rows("leases_of", worker_id, tx.namespace_id, limit, payloads)
            else:
                found = await self._expired_leases(tx, limit, payloads)
            return [tx.rows.lease(row, tx.rule_index.ladder) for row in found]

        return await self._read(read)

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        check_text(worker_id, "a worker's id")

        async def write(tx: Transaction) -> None:
            await finish.set_worker_state(tx, worker_id, WorkerState.DEAD)
            if left:
                await tx.db.run("forget_worker", worker_id, tx.namespace_id)

        await self._write(write)

    async def drain(self, worker_id: str) -> bool:
        check_text(worker_id, "a worker's id")

        async def write(tx: Transaction) -> bool:
            tx.notify_worker(worker_id)
            return await finish.set_worker_state(tx, worker_id, WorkerState.DRAINING)

        return await self._write(write)

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        return await self._move(job_ids, lambda tx, row: finish.cancel(tx, row, reason))

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        return await self._write(lambda tx: heartbeat.preempt(tx, amendments))

    async def retry(self, job_ids: Sequence[JobId], *, alone: bool = False) -> list[State | None]:
        return await self._move(job_ids, lambda tx, row: finish.retry(tx, row, alone=alone), hold_retried)

    async def reschedule(
        self, job_ids: Sequence[JobId], *, lane: str | None = None, now: bool = False
    ) -> list[State | None]:
        check_text(lane or "", "a lane")
        return await self._move(job_ids, lambda tx, row: finish.reschedule(tx, row, lane, now=now))

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        return await self._read(lambda tx: reads.get(tx, job_ids))

    async def find(self, query: JobQuery) -> list[JobRecord]:
        return await self._read(lambda tx: reads.find(tx, query))

    async def find_ids(self, query: JobQuery) -> list[tuple[int, JobId]]:
        return await self._read(lambda tx: reads.find_ids(tx, query))

    async def match_words(self, job_ids: Sequence[JobId], words: Sequence[str]) -> set[JobId]:
        return await self._read(lambda tx: reads.match_words(tx, job_ids, words))

    async def close_batch(self, batch_id: BatchId) -> BatchRecord | None:
        return await self._write(lambda tx: batches.close(tx, batch_id))

    async def cancel_batch(self, batch_id: BatchId) -> BatchRecord | None:
        return await self._write(lambda tx: batches.cancel(tx, batch_id))

    async def get_batches(self, batch_ids: Sequence[BatchId]) -> list[BatchRecord | None]:
        return await self._read(lambda tx: batches.get(tx, batch_ids))

    async def find_batches(self, query: BatchQuery) -> list[BatchRecord]:
        return await self._read(lambda tx: batches.find(tx, query))

    async def members(
        self, batch_id: BatchId, *, beyond: int = 0, states: Sequence[State] = (), limit: int = 500
    ) -> list[JobRecord]:
        return await self._read(lambda tx: batches.members(tx, batch_id, beyond, states, limit))

    async def upstreams(self, job_ids: Sequence[JobId], *, results: bool = False) -> list[list[Upstream]]:
        return await self._read(lambda tx: sources.upstreams(tx, job_ids, results=results))

    async def record_step(self, step: Step) -> bool:
        return await self._write(lambda tx: steps.record_step(tx, step))

    async def steps(self, job_id: JobId) -> dict[str, bytes]:
        return await self._read(lambda tx: steps.read_steps(tx, job_id))

    async def snapshot(self) -> Snapshot:
        return await self._read(lambda tx: tx.snapshot())

    async def stats(self) -> Stats:
        return await self._read(reads.stats)

    async def waiting_of(self, tenant: str) -> dict[str, LaneStats]:
        return await self._read(lambda tx: reads.waiting_of(tx, tenant))

    async def breakdown(self, *, limit: int = 1_000) -> QueueBreakdown:
        return await self._read(lambda tx: reads.breakdown(tx, limit))

    async def diagnose(self) -> QueueDiagnostics:
        return await self._read(diagnose.diagnose)

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        return await self._read(lambda tx: diagnose.diagnose_job(tx, job_id))

    async def preview(self, job: NewJob) -> SubmitPreview:
        check_jobs([job])
        return await self._read(lambda tx: diagnose.preview(tx, job))

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        if reasons:
            await self._write(lambda tx: diagnose.record_wait_reasons(tx, reasons))

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        return await self._write(lambda tx: prune.prune(tx, keep, limit, self._round))

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        return await self._write(lambda tx: prune.purge(tx, states, job_ids, limit))

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        if not (is_writable(kind) and is_writable(name)):
            return []

        async def read(tx: Transaction) -> list[Document]:
            return [Document(*row) for row in await tx.db.run("documents", tx.namespace_id, kind, name)]

        return await self._read(read)

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        check_text(kind, "a document's kind")
        check_text(name, "a document's name")

        async def write(tx: Transaction) -> int | None:
            before = tx.rule_index.rules if kind == RULES else None
            while True:
                version = await tx.db.first("document_version", tx.namespace_id, kind, name) or 0
                if if_version is not None and if_version != version:
                    return None
                if body is None:
                    await tx.db.run("document_remove", tx.namespace_id, kind, name)
                    break
                if await tx.db.first("document_write", tx.namespace_id, kind, name, version + 1, body) is not None:
                    break
            if before is not None:
                await tx.rules_changed()
                await adopt_rules(tx, before)
            if kind == POLICIES:
                for row in await tx.db.rows("workers", tx.namespace_id):
                    tx.notify_worker(row["worker_id"])
            return int(version) + 1

        return await self._write(write, alone=kind == RULES)

    async def _move(
        self,
        job_ids: Sequence[JobId],
        move: Callable[[Transaction, Row], Awaitable[State | None]],
        follow: Callable[[Transaction, Sequence[int]], Awaitable[None]] | None = None,
    ) -> list[State | None]:
        """Move each existing job once. Return the states of all jobs afterwards.

        ``follow`` is called with the numbers of the jobs whose state has changed, before their dependants are settled.
        """

        async def write(tx: Transaction) -> list[State | None]:
            states: dict[JobId, State] = {}
            numbers: dict[JobId, int] = {}
            changed: list[int] = []
            left = list(dict.fromkeys(job_ids))
            while left:  # Read jobs again that another process has moved meanwhile.
                again = []
                for job_id, row in sorted((await reads.find_rows(tx, left)).items(), key=lambda item: item[1]["seq"]):
                    numbers[job_id] = row["seq"]
                    state = await move(tx, row)
                    if state is None:
                        again.append(job_id)
                    else:
                        states[job_id] = state
                        if state != row["state"]:
                            changed.append(row["seq"])
                left = again
            if follow is not None and changed:
                await follow(tx, changed)
            # Jobs are locked by number, and their dependants are settled in the order given.
            moved = [numbers[job_id] for job_id in job_ids if job_id in numbers]
            tx.unsettled = {seq: 0 for seq in moved if seq in tx.unsettled}
            await tx.settle_edges()
            tx.changed += [job_id for job_id in job_ids if job_id in states]
            return [states.get(job_id) for job_id in job_ids]

        return await self._write(write)
