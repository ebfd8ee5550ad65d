"""The verbs of a store, on one SQLite file that several processes may share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.errors import StoreBusy, StoreError
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.lease import Lease
from headway.core.policy.clock import StoreClock
from headway.core.policy.document import Keep
from headway.core.policy.ladder import Preemption
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerState
from headway.stores.base import (
    LEASE_CHANNEL,
    POLICIES,
    RULES,
    TIMEOUT,
    Abilities,
    Clock,
    CopySummary,
    Document,
    Exchange,
    ExchangeReply,
    Heartbeat,
    HeartbeatReply,
    JobQuery,
    LaneStats,
    Stats,
    Subscription,
    submit_within,
)
from headway.stores.clock import SteadyClock
from headway.stores.sqlite import backup, claim, diagnose, finish, heartbeat, prune, rows, submit
from headway.stores.sqlite import query as reads
from headway.stores.sqlite.connection import Driver, SqliteConnection
from headway.stores.sqlite.database import Database
from headway.stores.sqlite.limits import adopt_rules
from headway.stores.sqlite.notifier import PipeNotifier
from headway.stores.sqlite.own_file import OwnFile
from headway.stores.sqlite.statements import MIGRATIONS
from headway.stores.sqlite.transaction import Hooks, SqliteCache, SqliteTransaction
from headway.stores.texts import check_jobs, check_text, check_worker, escape_surrogates, is_writable

T = TypeVar("T")


class Executor(Protocol):
    """Where transactions are carried out: in threads of their own, or right where the caller is."""

    @property
    def driver(self) -> Driver: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def version(self) -> int | None: ...

    def write(self, function: Callable[[SqliteConnection, Hooks], T], *, vital: bool = True) -> Awaitable[T]:
        """Run a function inside a transaction that may write."""
        ...

    def read(self, function: Callable[[SqliteConnection, Hooks], T]) -> Awaitable[T]:
        """Run a function that only reads, all at one moment."""
        ...


class SqliteStore:
    """Jobs in a file: durable through power loss by default, shared by any number of processes of one machine."""

    def __init__(self, place: Executor, namespace: str = "default", *, clock: Clock, timeout: float = TIMEOUT) -> None:
        self.path = place.driver.path
        self.namespace = namespace
        self.abilities = Abilities(
            durable=True,
            shared=True,
            any_loop=True,
            path=self.path,
            submit_blocking=self.submit_blocking,
            backup=self,
        )
        self._clock = clock
        self._steady = SteadyClock()
        self._timeout = timeout
        self._timing = threading.Lock()  # One thread reads and another one writes.
        self._place = place
        self._notifier = PipeNotifier(self.path)
        self._memory = SqliteCache()
        self._round = prune.SqlitePruneRound()

    async def open(self) -> None:
        self._notifier.check()
        await self._place.open()

    async def close(self) -> None:
        await self._place.close()

    async def copy_to(self, target: Path) -> CopySummary:
        """Copy the store into a new file. Raises ``StoreError`` for tables in a file of another program."""
        return await asyncio.to_thread(backup.copy_out, self._own_file(), target)

    async def restore_from(self, source: Path) -> CopySummary:
        """Make the store from a copy. Raises ``StoreError`` if it exists."""
        return await asyncio.to_thread(backup.copy_in, self._own_file(), source)

    def _own_file(self) -> OwnFile:
        if not isinstance(self._place.driver, OwnFile):
            raise StoreError(f"{self.path} belongs to another program; back up its whole file", path=str(self.path))
        return self._place.driver

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        if not isinstance(self._place, Database):  # It is done right here, perhaps without a loop that could time it.
            return await self._place.write(self._submitting(jobs), vital=False)
        try:
            async with asyncio.timeout(submit_within(self._timeout, jobs)):
                return await self._place.write(self._submitting(jobs), vital=False)
        except TimeoutError as problem:
            raise self._late() from problem

    def submit_blocking(self, jobs: Sequence[NewJob]) -> list[SubmitReply] | None:
        """Submit from a thread without an event loop."""
        if not isinstance(self._place, Database):
            return None
        try:
            within = submit_within(self._timeout, jobs)
            return self._place.write_waiting(self._submitting(jobs), vital=False, timeout=within)
        except TimeoutError as problem:
            raise self._late() from problem

    def _late(self) -> StoreBusy:
        return StoreBusy(
            f"{self.path} did not take the jobs within {self._timeout:g} s: another process has locked it, or its disk "
            "is slow. The same submit may be repeated",
            path=str(self.path),
        )

    async def exchange(self, request: Exchange) -> ExchangeReply:
        return await self._write(lambda tx: claim.exchange(tx, request), asker=request.worker_id)

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        check_worker(beat.worker)
        return await self._write(lambda tx: heartbeat.renew(tx, beat))

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000) -> list[Lease]:
        check_text(worker_id or "", "a worker's id")

        def read(tx: SqliteTransaction) -> list[Lease]:
            if worker_id is not None:
                found = tx.db.rows("leases_of", worker_id, tx.namespace_id, limit)
            else:
                found = tx.db.rows("leases_expired", tx.namespace_id, tx.now_at, limit)
            return [rows.lease(row, tx.rule_index.ladder) for row in found]

        return await self._read(read)

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        check_text(worker_id, "a worker's id")

        def write(tx: SqliteTransaction) -> None:
            finish.set_worker_state(tx, worker_id, WorkerState.DEAD)
            if left:
                tx.db.run("forget_worker", worker_id, tx.namespace_id)

        await self._write(write)

    async def drain(self, worker_id: str) -> bool:
        check_text(worker_id, "a worker's id")

        def write(tx: SqliteTransaction) -> bool:
            tx.notify(worker_id + LEASE_CHANNEL)
            return finish.set_worker_state(tx, worker_id, WorkerState.DRAINING)

        return await self._write(write)

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        return await self._move(job_ids, lambda tx, row: finish.cancel(tx, row, escape_surrogates(reason)))

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        return await self._write(lambda tx: heartbeat.preempt(tx, amendments))

    async def retry(self, job_ids: Sequence[JobId]) -> list[State | None]:
        return await self._move(job_ids, finish.retry)

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        return await self._read(lambda tx: reads.get(tx, job_ids))

    async def find(self, query: JobQuery) -> list[JobRecord]:
        return await self._read(lambda tx: reads.find(tx, query))

    async def snapshot(self) -> Snapshot:
        return await self._read(reads.snapshot)

    async def stats(self) -> Stats:
        return await self._read(reads.stats)

    async def waiting_of(self, tenant: str) -> dict[str, LaneStats]:
        return await self._read(lambda tx: reads.waiting_of(tx, tenant))

    async def diagnose(self) -> QueueDiagnostics:
        return await self._read(diagnose.diagnose)

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        return await self._read(lambda tx: diagnose.diagnose_job(tx, job_id))

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
        return await self._read(
            lambda tx: [Document(*row) for row in tx.db.run("documents", tx.namespace_id, kind, name)]
        )

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        check_text(kind, "a document's kind")
        check_text(name, "a document's name")

        def write(tx: SqliteTransaction) -> int | None:
            version = tx.db.first("document_version", tx.namespace_id, kind, name) or 0
            if kind == RULES:
                _ = tx.rule_index  # As they are before they change.
            if if_version is not None and if_version != version:
                return None
            if body is None:
                tx.db.run("document_remove", tx.namespace_id, kind, name)
            else:
                tx.db.run("document_write", tx.namespace_id, kind, name, version + 1, body)
            if kind == RULES:
                adopt_rules(tx)
            if kind == POLICIES:
                for row in tx.db.rows("workers", tx.namespace_id):
                    tx.notify(row["worker_id"] + LEASE_CHANNEL)
            return int(version) + 1

        return await self._write(write)

    def subscribe(self, name: str) -> Subscription:
        return self._notifier.subscribe(name)

    async def schema(self) -> tuple[int | None, int]:
        return await self._place.version(), MIGRATIONS[-1][0]

    async def describe(self) -> dict[str, str]:
        return self._place.driver.describe()

    async def _move(
        self, job_ids: Sequence[JobId], move: Callable[[SqliteTransaction, rows.Row], State]
    ) -> list[State | None]:
        """Move each of the jobs that exist, once. Gives all their states afterwards."""

        def write(tx: SqliteTransaction) -> list[State | None]:
            states = {job_id: move(tx, row) for job_id, row in reads.find_rows(tx, job_ids).items()}
            tx.changed += job_ids
            return [states.get(job_id) for job_id in job_ids]

        return await self._write(write)

    def _submitting(self, jobs: Sequence[NewJob]) -> Callable[[SqliteConnection, Hooks], list[SubmitReply]]:
        check_jobs(jobs)
        return self._writing(lambda tx: submit.submit(tx, jobs))

    def _write(self, function: Callable[[SqliteTransaction], T], *, asker: str | None = None) -> Awaitable[T]:
        return self._place.write(self._writing(function, asker=asker))

    def _writing(
        self, function: Callable[[SqliteTransaction], T], *, asker: str | None = None
    ) -> Callable[[SqliteConnection, Hooks], T]:  # fmt: skip
        def run(db: SqliteConnection, hooks: Hooks) -> T:
            tx, memory = self._transaction(db, hooks, writes=True)
            if not tx.namespace_id:
                tx.namespace_id = memory.namespace_id = int(db.first("namespace_add", self.namespace))
                hooks.after_rollback(memory.forget_namespace)
            value = function(tx)
            tx.settle(but=asker)
            return value

        return run

    def _read(self, function: Callable[[SqliteTransaction], T]) -> Awaitable[T]:
        return self._place.read(lambda db, hooks: function(self._transaction(db, hooks)[0]))

    def _transaction(
        self, db: SqliteConnection, hooks: Hooks, *, writes: bool = False
    ) -> tuple[SqliteTransaction, SqliteCache]:
        memory = hooks.borrow(self._memory)
        if not memory.namespace_id:
            memory.namespace_id = db.first("namespace_find", self.namespace) or 0
        now_at, namespace_id = self._now(db, writes), memory.namespace_id
        tx = SqliteTransaction(
            db, now_at=now_at, namespace_id=namespace_id, memory=memory, notifier=self._notifier, hooks=hooks
        )
        return tx, memory

    def _now(self, db: SqliteConnection, writes: bool) -> int:
        """Return the store time. Once a second what all processes know of the clock is read, and written if it may."""
        raw_at = self._clock()
        with self._timing:
            steady = self._steady
            if not steady.is_fresh(raw_at):
                ahead_ms, reached_at = db.run("clock_read").fetchone()
                steady.learn(StoreClock(ahead_ms or 0, reached_at or 0), raw_at)
            now_at = steady.now(raw_at)
            if writes and steady.clock != steady.stored:
                db.run("clock_write", *steady.clock)
                steady.stored = steady.clock
            return now_at


def make_store(
    path: Path, namespace: str, *, clock: Clock, synchronous: str = "FULL", timeout: float = TIMEOUT
) -> SqliteStore:
    """Make a store in a file of its own."""
    return SqliteStore(Database(OwnFile(path, synchronous)), namespace, clock=clock, timeout=timeout)
