"""The store on one SQLite file, which several processes may share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headway.core.errors import StoreBusy, StoreError
from headway.core.job import NewJob, SubmitReply
from headway.core.policy.clock import StoreClock
from headway.core.workflow import Graph, GraphReply, check_graph
from headway.runtime.immediate import run_now
from headway.stores.assets import describe_migrations
from headway.stores.base import (
    TIMEOUT,
    Abilities,
    Clock,
    CopySummary,
    Exchange,
    ExchangeReply,
    Subscription,
    submit_within,
)
from headway.stores.clock import SteadyClock
from headway.stores.sql.prune import PruneRound
from headway.stores.sql.rows import Row
from headway.stores.sql.settle import settle_moves
from headway.stores.sql.store import SqlStore, Verb
from headway.stores.sql.transaction import Transaction
from headway.stores.sqlite import backup, claim, submit
from headway.stores.sqlite import graph as graphs
from headway.stores.sqlite.connection import Driver, SqliteConnection
from headway.stores.sqlite.database import Database
from headway.stores.sqlite.notifier import PipeNotifier
from headway.stores.sqlite.own_file import OwnFile
from headway.stores.sqlite.statements import MIGRATIONS
from headway.stores.sqlite.transaction import Hooks, SqliteCache, SqliteTransaction
from headway.stores.texts import check_jobs

T = TypeVar("T")

SqliteVerb = Callable[[SqliteTransaction], Coroutine[Any, Any, T]]


class SqliteExecutor(Protocol):
    """Runs transactions, in its own threads or in the caller's thread."""

    @property
    def driver(self) -> Driver: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def version(self) -> int | None: ...

    def write(self, function: Callable[[SqliteConnection, Hooks], T], *, vital: bool = True) -> Awaitable[T]:
        """Run a function inside a transaction that may write."""
        ...

    def read(self, function: Callable[[SqliteConnection, Hooks], T]) -> Awaitable[T]:
        """Run a function that only reads, in a transaction that sees one moment."""
        ...


class SqliteStore(SqlStore):
    """Jobs in a file: durable through power loss by default, shared by any number of processes of one machine."""

    def __init__(
        self, executor: SqliteExecutor, namespace: str = "default", *, clock: Clock, timeout: float = TIMEOUT
    ) -> None:
        super().__init__(PruneRound())
        self.path = executor.driver.path
        self.namespace = namespace
        self.abilities = Abilities(
            durable=True,
            shared=True,
            any_loop=True,
            path=self.path,
            submit_blocking=self.submit_blocking,
            backup=self,
            match_words=self.match_words,
            pending_changes=self.pending_changes,
        )
        self._clock = clock
        self._steady = SteadyClock()
        self._timeout = timeout
        self._timing = threading.Lock()  # One thread reads and another one writes.
        self._executor = executor
        self._notifier = PipeNotifier(self.path)
        self._memory = SqliteCache()

    async def open(self) -> None:
        self._notifier.check()
        await self._executor.open()

    async def close(self) -> None:
        await self._executor.close()

    async def copy_to(self, target: Path) -> CopySummary:
        """Copy the store into a new file. Raises ``StoreError`` for tables in a file of another program."""
        return await asyncio.to_thread(backup.copy_out, self._own_file(), target)

    async def restore_from(self, source: Path) -> CopySummary:
        """Make the store from a copy. Raises ``StoreError`` if it exists."""
        return await asyncio.to_thread(backup.copy_in, self._own_file(), source)

    def _own_file(self) -> OwnFile:
        if not isinstance(self._executor.driver, OwnFile):
            raise StoreError(f"{self.path} belongs to another program; back up its whole file", path=str(self.path))
        return self._executor.driver

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        if not isinstance(self._executor, Database):  # It runs here, maybe without an event loop.
            return await self._executor.write(self._submitting(jobs), vital=False)
        try:
            async with asyncio.timeout(submit_within(self._timeout, jobs)):
                return await self._executor.write(self._submitting(jobs), vital=False)
        except TimeoutError as problem:
            raise self._late() from problem

    def submit_blocking(self, jobs: Sequence[NewJob]) -> list[SubmitReply] | None:
        """Submit from a thread without an event loop."""
        if not isinstance(self._executor, Database):
            return None
        try:
            within = submit_within(self._timeout, jobs)
            return self._executor.write_waiting(self._submitting(jobs), vital=False, timeout=within)
        except TimeoutError as problem:
            raise self._late() from problem

    def _late(self) -> StoreBusy:
        return StoreBusy(
            f"{self.path} did not take the jobs within {self._timeout:g} s: another process has locked it, or its disk "
            "is slow. The same submit may be repeated",
            path=str(self.path),
        )

    async def submit_graph(self, graph: Graph) -> GraphReply:
        check_graph(graph)
        check_jobs([node.job for node in graph.nodes])
        return await self._write(lambda tx: graphs.submit_graph(tx, graph))

    async def exchange(self, request: Exchange) -> ExchangeReply:
        return await self._write(lambda tx: claim.exchange(tx, request), asker=request.worker_id)

    def subscribe(self, name: str) -> Subscription:
        return self._notifier.subscribe(name)

    async def pending_changes(self) -> list[str]:
        """Return what the next opening would change."""
        return describe_migrations(MIGRATIONS, await self._executor.version())

    async def schema(self) -> tuple[int | None, int]:
        return await self._executor.version(), MIGRATIONS[-1][0]

    async def describe(self) -> dict[str, str]:
        return self._executor.driver.describe()

    def _submitting(self, jobs: Sequence[NewJob]) -> Callable[[SqliteConnection, Hooks], list[SubmitReply]]:
        check_jobs(jobs)
        return self._writing(lambda tx: submit.submit(tx, jobs))

    def _write(self, verb: SqliteVerb[T], *, alone: bool = False, asker: str | None = None) -> Awaitable[T]:
        return self._executor.write(self._writing(verb, asker=asker))  # One process writes at a time: it is alone.

    def _writing(
        self, verb: SqliteVerb[T], *, asker: str | None = None
    ) -> Callable[[SqliteConnection, Hooks], T]:  # fmt: skip
        async def settled(tx: SqliteTransaction) -> T:
            value = await verb(tx)
            await settle_moves(tx)
            await tx.settle(but=asker)
            return value

        def run(db: SqliteConnection, hooks: Hooks) -> T:
            tx, memory = self._transaction(db, hooks, writes=True)
            if not tx.namespace_id:
                tx.namespace_id = memory.namespace_id = int(db.first("namespace_add", self.namespace))
                hooks.after_rollback(memory.forget_namespace)
            return run_now(settled(tx))

        return run

    def _read(self, verb: Verb[T]) -> Awaitable[T]:
        return self._executor.read(lambda db, hooks: run_now(verb(self._transaction(db, hooks)[0])))

    async def _expired_leases(self, tx: Transaction, limit: int, payloads: bool) -> Sequence[Row]:
        return await tx.db.rows("leases_expired", tx.namespace_id, tx.now_at, limit, payloads)

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
        """Return the store time. Once a second, read the clock that all processes share, and write it if allowed."""
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
