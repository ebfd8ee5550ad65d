"""The verbs of a store, on a PostgreSQL database that any number of machines share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.errors import HeadwayError, StoreUnavailable
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.lease import Lease
from headway.core.policy.document import Keep
from headway.core.policy.enforced import RuleIndex
from headway.core.policy.ladder import Preemption
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerState
from headway.stores.base import (
    POLICIES,
    RULES,
    Abilities,
    Clock,
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
from headway.stores.postgres import claim, diagnose, fast_path, finish, heartbeat, migrate, prune, rows
from headway.stores.postgres import query as reads
from headway.stores.postgres.connections import Connection, Connections, KnownAlready, connect, naming
from headway.stores.postgres.external_transaction import ExternalSubmit, PlainExternalSubmit
from headway.stores.postgres.limits import adopt_rules
from headway.stores.postgres.notifier import WATCHED_MS, PostgresNotifier
from headway.stores.postgres.statements import channel, queries
from headway.stores.postgres.submit import PlainSubmit, SubmitBatch, as_plain
from headway.stores.postgres.transaction import (
    PostgresCache,
    PostgresTransaction,
    Row,
    StatementRunner,
    binding,
    read_rules,
)
from headway.stores.texts import check_jobs, check_text, check_worker, is_writable
from headway.stores.transport import warn_once

if TYPE_CHECKING:
    from headway.stores.postgres.address import PostgresAddress
    from headway.stores.postgres.borrowed_connection import BorrowedConnection

T = TypeVar("T")

THOROUGH_EVERY = 60.0  # Seconds between looks for overdue leases that trust no count; each may walk many dead rows.


class _NeedsExclusive(HeadwayError):
    """This has to be done with nobody else in the namespace."""


class _NotPlain(HeadwayError):
    """A job is known already."""


class PostgresStore:
    """Jobs in a schema of a database. One instance serves one event loop.

    ``borrowed``: every verb runs on that connection, which is the caller's, instead of on connections of its own.
    """

    def __init__(
        self,
        address: PostgresAddress,
        namespace: str = "default",
        *,
        clock: Clock | None = None,
        borrowed: BorrowedConnection | None = None,
    ) -> None:
        self.address = address
        self.namespace = namespace
        self.abilities = Abilities(
            durable=True, shared=True, any_loop=False, remote=True, external_submit=self, migrate=self.migrate
        )
        self._clock = clock
        self._schema = address.schema
        self._connections: Connections | BorrowedConnection = borrowed or Connections(address)
        self._channel = channel(address.schema, namespace)
        self._notifier = PostgresNotifier(address.listen if borrowed is None else None, self._channel, self._watch)
        self._memory = PostgresCache()
        self._looks = fast_path.FullScanSchedule()
        self._round = prune.PostgresPruneRound()
        self._swept = -THOROUGH_EVERY

    async def open(self) -> None:
        if not isinstance(self._connections, Connections):
            return
        hint = "add sslmode=verify-full to the address, and sslrootcert for a certificate of your own"
        warn_once(self.address.transport, self.address.shown, hint)
        with naming(self.address.shown):
            connection = await connect(self.address.url, pgbouncer=self.address.pgbouncer, within=self.address.timeout)
            try:
                await migrate.prepare(connection, self._schema, self.address.shown)
            except BaseException:
                connection.terminate()
                raise
        self._connections.open(connection)

    async def close(self) -> None:
        await self._notifier.close()
        await self._connections.close()

    async def migrate(self) -> list[int]:
        """Bring the schema to this Headway's version. Gives the numbers of the steps taken."""
        with naming(self.address.shown):
            connection = await connect(self.address.url, pgbouncer=self.address.pgbouncer)
            try:
                return await migrate.migrate(connection, self._schema, self.address.shown)
            finally:
                await connection.close(timeout=5)

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        if not jobs:
            return []
        if not isinstance(self._connections, Connections):  # There may be no loop that could time it.
            return await self._submit_all(jobs)
        try:
            async with asyncio.timeout(submit_within(self.address.timeout, jobs)):
                return await self._submit_all(jobs)
        except TimeoutError as problem:
            raise StoreUnavailable(
                f"{self.address.shown} did not answer within {self.address.timeout:g} s; whether the jobs were taken "
                "is not known, and the same submit may be repeated"
            ) from problem

    async def _submit_all(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        check_jobs(jobs)
        await self._ready()
        memory = self._memory
        plain = as_plain(jobs, memory.class_ids)
        if plain is not None and await self._submit_plain(plain):
            return plain.answers()
        batch = SubmitBatch(jobs, memory.class_ids, memory.rule_index)
        while True:
            row = await self._submit(batch)
            if row["status"] != "stale":
                memory.class_ids.update(batch.classes(row))
                return batch.answers(row)
            await self._follow_rules()
            batch = SubmitBatch(jobs, memory.class_ids, memory.rule_index)

    async def _submit_plain(self, plain: PlainSubmit) -> bool:
        """Submit jobs the short way; gives whether that was possible, else nothing was done."""
        start = (self._memory.namespace_id, self._now())

        async def submit(raw: Connection) -> bool:
            try:
                return bool(await StatementRunner(raw, self._schema).first(plain.statement, *start, *plain.values))
            except KnownAlready as problem:
                raise _NotPlain from problem

        try:
            return await self._connections.run(submit)
        except _NotPlain:
            return False

    async def _submit(self, batch: SubmitBatch) -> Row:
        memory = self._memory

        async def submit(raw: Connection) -> Row:
            start = (memory.namespace_id, self._now(), memory.rules_version, False, batch.careful)
            return await StatementRunner(raw, self._schema).row("submit", *start, *batch.columns)

        return await self._connections.run(submit)

    async def prepare_submit(self, jobs: Sequence[NewJob]) -> ExternalSubmit | PlainExternalSubmit:
        """Prepare a submit for a connection of the caller's, to the same database."""
        check_jobs(jobs)
        await self._ready()
        memory = self._memory
        if (plain := self.prepare_submit_blocking(jobs)) is not None:
            return plain
        await self._follow_rules()
        for key in {job.class_key for job in jobs} - memory.class_ids.keys():  # Others must not wait for the caller.
            values = (key.lane, key.rung or "", list(key.needs), key.persist)
            memory.class_ids[key] = await self._first("class_add", memory.namespace_id, *values)
        batch = SubmitBatch(jobs, memory.class_ids, memory.rule_index)
        # Careful, so that a job that is known already does not end the caller's transaction.
        start = (memory.namespace_id, self._now(), memory.rules_version, True, True)
        return ExternalSubmit(batch, queries(self._schema)["submit"], (*start, *batch.columns))

    def prepare_submit_blocking(self, jobs: Sequence[NewJob]) -> PlainExternalSubmit | None:
        """Prepare it in any thread, if that is one plain job and all that it takes is known here."""
        check_jobs(jobs)
        memory = self._memory
        plain = as_plain(jobs, memory.class_ids) if len(jobs) == 1 and memory.namespace_id else None
        if plain is None or plain.values[0] in memory.unplain:
            return None
        start = (memory.namespace_id, self._now())
        statement = queries(self._schema)["submit_within"]
        return PlainExternalSubmit(
            plain, statement, (*start, *plain.values), partial(memory.unplain.add, plain.values[0])
        )

    async def exchange(self, request: Exchange) -> ExchangeReply:
        await self._ready()
        memory = self._memory
        for _ in range(3):  # Rules may change meanwhile.
            if memory.rules_version < 0:
                await self._follow_rules()
            if binding(memory.rule_index) or not fast_path.is_eligible(request):
                break
            if request.plan is not None and any(take.key not in memory.class_ids for take in request.plan.takes):
                await self._read(PostgresTransaction.classes)
            answer = await self._connections.run(
                lambda raw: fast_path.exchange(
                    StatementRunner(raw, self._schema), memory, self._looks, request, self._now()
                )
            )
            if answer is not None:
                return answer
            if memory.rules_version >= 0:
                break
        return await self._write(lambda tx: claim.exchange(tx, request), asker=request.worker_id)

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        check_worker(beat.worker)
        return await self._write(lambda tx: heartbeat.renew(tx, beat))

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000) -> list[Lease]:
        check_text(worker_id or "", "a worker's id")

        async def read(tx: PostgresTransaction) -> list[Lease]:
            if worker_id is not None:
                found = await tx.db.run("leases_of", worker_id, tx.namespace_id, limit)
            else:
                found = await tx.db.run("leases_expired", self._sweeps_thoroughly(), tx.now_at, tx.namespace_id, limit)
            return [rows.lease(row, tx.rule_index.ladder) for row in found]

        return await self._read(read)

    def _sweeps_thoroughly(self) -> bool:
        """Return whether it is time to look for overdue leases whatever their workers' counts say."""
        now = time.monotonic()
        if now - self._swept < THOROUGH_EVERY:
            return False
        self._swept = now
        return True

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        check_text(worker_id, "a worker's id")

        async def write(tx: PostgresTransaction) -> None:
            await finish.set_worker_state(tx, worker_id, WorkerState.DEAD)
            if left:
                await tx.db.run("forget_worker", worker_id, tx.namespace_id)

        await self._write(write)

    async def drain(self, worker_id: str) -> bool:
        check_text(worker_id, "a worker's id")

        async def write(tx: PostgresTransaction) -> bool:
            tx.rung.append(worker_id)
            return await finish.set_worker_state(tx, worker_id, WorkerState.DRAINING)

        return await self._write(write)

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        return await self._move(job_ids, lambda tx, row: finish.cancel(tx, row, reason))

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
        touched = await self._write(lambda tx: prune.prune(tx, keep, limit, self._round))
        if self._round.days_are_due():
            await self._ready()
            await self._first("partitions_maintain", self._now())
        return touched

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        return await self._write(lambda tx: prune.purge(tx, states, job_ids, limit))

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        if not (is_writable(kind) and is_writable(name)):
            return []

        async def read(tx: PostgresTransaction) -> list[Document]:
            return [Document(*row) for row in await tx.db.run("documents", tx.namespace_id, kind, name)]

        return await self._read(read)

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        check_text(kind, "a document's kind")
        check_text(name, "a document's name")

        async def write(tx: PostgresTransaction) -> int | None:
            while True:
                version = await tx.db.first("document_version", tx.namespace_id, kind, name) or 0
                if if_version is not None and if_version != version:
                    return None
                if body is None:
                    await tx.db.run("document_remove", tx.namespace_id, kind, name)
                    break
                if await tx.db.first("document_write", tx.namespace_id, kind, name, version + 1, body) is not None:
                    break
            if kind == RULES:
                before = tx.rule_index.rules
                await tx.db.run("rules_changed", tx.namespace_id)
                await read_rules(tx.db, tx.memory)
                await adopt_rules(tx, before)
            if kind == POLICIES:
                tx.rung += [row["worker_id"] for row in await tx.db.run("workers", tx.namespace_id)]
            return int(version) + 1

        try:
            return await self._write(write, alone=kind == RULES)
        except BaseException:
            self._memory.rules_version = -1  # What was read may have been undone.
            raise

    def subscribe(self, name: str) -> Subscription:
        return self._notifier.subscribe(name)

    async def schema(self) -> tuple[int | None, int]:
        with naming(self.address.shown):
            connection = await connect(self.address.url, pgbouncer=self.address.pgbouncer)
            try:
                found = await migrate.look(connection, self._schema, self.address.shown)
            finally:
                await connection.close(timeout=5)
        return found.schema, migrate.NEWEST

    async def describe(self) -> dict[str, str]:
        row = await self._connections.run(lambda raw: StatementRunner(raw, self._schema).row("server_facts"))
        facts = {
            "store": f"postgresql, {self.address.shown}",
            "schema": f"{self._schema}, version {migrate.NEWEST}",
            "server": f"PostgreSQL {row['version']}",
            "durability": _durability(row),
            "transport": self.address.transport.value,
        }
        if row["oldest"] is not None:
            facts["oldest transaction"] = f"{row['oldest']}: while it lasts, rows that are gone cannot be cleared away"
        return facts

    # ------------------------------------------------------------------ transactions

    async def _move(
        self, job_ids: Sequence[JobId], move: Callable[[PostgresTransaction, Row], Awaitable[State | None]]
    ) -> list[State | None]:
        """Move each of the jobs that exist, once. Gives all their states afterwards."""

        async def write(tx: PostgresTransaction) -> list[State | None]:
            states: dict[JobId, State] = {}
            left = list(dict.fromkeys(job_ids))
            while left:  # Those that moved by themselves in the meantime are looked at again.
                again = []
                for job_id, row in sorted((await reads.find_rows(tx, left)).items(), key=lambda item: item[1]["seq"]):
                    state = await move(tx, row)
                    if state is None:
                        again.append(job_id)
                    else:
                        states[job_id] = state
                left = again
            tx.changed += [job_id for job_id in job_ids if job_id in states]
            return [states.get(job_id) for job_id in job_ids]

        return await self._write(write)

    async def _write(
        self,
        function: Callable[[PostgresTransaction], Awaitable[T]],
        *,
        alone: bool = False,
        asker: str | None = None,
    ) -> T:
        """Run a function in a transaction, with others in the namespace or, where its rules ask for that, alone."""
        await self._ready()
        while True:
            chosen = alone or binding(self._memory.rule_index)
            try:
                return await self._connections.run(
                    lambda raw, chosen=chosen: self._transact(raw, function, chosen, asker),  # type: ignore[misc]
                    "read_committed",
                )
            except _NeedsExclusive:
                alone = True

    async def _transact(
        self,
        raw: Connection,
        function: Callable[[PostgresTransaction], Awaitable[T]],
        alone: bool,
        asker: str | None,
    ) -> T:
        db, memory = StatementRunner(raw, self._schema), self._memory
        entered = await db.row("begin", memory.namespace_id, self._now(), alone)
        if entered["rules"] != memory.rules_version:
            await read_rules(db, memory)
        if not alone and (entered["parked"] or binding(memory.rule_index)):
            raise _NeedsExclusive
        tx = PostgresTransaction(db, now_at=entered["now_at"], memory=memory, parked=entered["parked"], alone=alone)
        value = await function(tx)
        await tx.settle(but=asker)
        return value

    async def _read(self, function: Callable[[PostgresTransaction], Awaitable[T]]) -> T:
        """Run a function that changes nothing; all it reads is of one moment."""
        await self._notifier.settled()

        async def read(raw: Connection) -> T:
            db, memory = StatementRunner(raw, self._schema), self._memory
            row = await db.row("now", self._now(), self.namespace)
            if row["namespace_id"] is None:
                memory = PostgresCache()
                memory.adopt(0, RuleIndex())
            else:
                memory.namespace_id = row["namespace_id"]
                if row["rules"] != memory.rules_version:
                    await read_rules(db, memory)
            return await function(PostgresTransaction(db, now_at=row["now_at"], memory=memory))

        return await self._connections.run(read, "repeatable_read")

    async def _follow_rules(self) -> None:
        async def follow(raw: Connection) -> None:
            await read_rules(StatementRunner(raw, self._schema), self._memory)

        await self._connections.run(follow)

    async def _ready(self) -> None:
        """See that the namespace is known, and that those who listen here are heard of."""
        await self._notifier.settled()
        if not self._memory.namespace_id:
            self._memory.namespace_id = await self._first("namespace_add", self.namespace, self._channel)

    async def _first(self, name: str, *values: object) -> Any:
        """Execute one statement by itself; give the first column of its first row."""
        return await self._connections.run(lambda raw: StatementRunner(raw, self._schema).first(name, *values))

    async def _watch(self, names: list[str], begins: bool) -> None:
        if not self._memory.namespace_id:
            self._memory.namespace_id = await self._first("namespace_add", self.namespace, self._channel)
        ns = self._memory.namespace_id

        async def begin(raw: Connection) -> None:
            # Alone: an exchange that has looked for watchers, and found none, is committed before this one comes.
            db = StatementRunner(raw, self._schema)
            await db.row("begin", ns, self._now(), True)
            await db.run("watch", ns, names, WATCHED_MS)

        if begins:
            await self._connections.run(begin, "read_committed")
        else:
            await self._first("unwatch", ns, names)

    def _now(self) -> int | None:
        """The moment by the clock of tests; in real life there is none here, and the server's own is read."""
        return None if self._clock is None else self._clock()


def _durability(row: Row) -> str:
    level = row["synchronous_commit"]
    if row["fsync"] != "on":
        return "fsync=off: an accepted job may be lost whenever the server's machine goes down"
    if level == "off":
        return "synchronous_commit=off: an accepted job may be lost if the server crashes within about a second"
    if row["standbys"] and level in ("on", "remote_apply", "remote_write"):
        return f"synchronous_commit={level}: an accepted job survives the loss of the server, on a standby"
    return f"synchronous_commit={level}: an accepted job survives process, system and power loss"
