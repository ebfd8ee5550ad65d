"""The verbs of a store, on a PostgreSQL database that any number of machines share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headway.core.errors import HeadwayError, StoreUnavailable
from headway.core.job import NewJob, SubmitReply
from headway.core.policy.document import Keep
from headway.core.policy.enforced import RuleIndex
from headway.core.workflow import Graph, GraphReply, check_graph
from headway.stores.base import (
    Abilities,
    Clock,
    Exchange,
    ExchangeReply,
    Subscription,
    submit_within,
)
from headway.stores.postgres import exchange, migrate
from headway.stores.postgres.connections import (
    BATCH_ENDED,
    TLS_HINT,
    Connection,
    Connections,
    KnownAlready,
    ServerError,
    connect,
    naming,
)
from headway.stores.postgres.demands import NeedsExclusive, SettlesFirst, UnknownValues, demand_of
from headway.stores.postgres.external_transaction import ExternalGraph, ExternalSubmit, PlainExternalSubmit
from headway.stores.postgres.graph import GraphSubmit, batch_closed
from headway.stores.postgres.migrate import SchemaVersion
from headway.stores.postgres.notifier import WATCHED_MS, PostgresNotifier
from headway.stores.postgres.runner import PostgresCache, PostgresRunner, Row, read_rules
from headway.stores.postgres.statements import channel, queries
from headway.stores.postgres.submit import PlainSubmit, SubmitBatch, as_plain
from headway.stores.postgres.transaction import PostgresTransaction
from headway.stores.sql.exchange import apply_reports, make_due_eligible
from headway.stores.sql.prune import PruneRound
from headway.stores.sql.settle import settle_moves
from headway.stores.sql.store import SqlStore, Verb
from headway.stores.sql.transaction import Transaction
from headway.stores.texts import check_jobs
from headway.stores.transport import warn_once

if TYPE_CHECKING:
    from headway.stores.postgres.address import PostgresAddress
    from headway.stores.postgres.borrowed_connection import BorrowedConnection

T = TypeVar("T")

PostgresVerb = Callable[[PostgresTransaction], Coroutine[Any, Any, T]]

PARTITIONS_EVERY = 600.0  # Seconds between looks for tables of days to make or drop.
THOROUGH_EVERY = 60.0  # Seconds between looks for overdue leases that trust no count; each may walk many dead rows.


class _NotPlain(HeadwayError):
    """A job is known already."""


class PostgresStore(SqlStore):
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
        super().__init__(PruneRound(trims_once=True))
        self.address = address
        self.namespace = namespace
        self.abilities = Abilities(
            durable=True,
            shared=True,
            any_loop=False,
            remote=True,
            external_submit=self,
            migrate=self.migrate,
            match_words=self.match_words,
            pending_changes=self.pending_changes,
        )
        self._clock = clock
        self._schema = address.schema
        self._connections: Connections | BorrowedConnection = borrowed or Connections(address)
        self._channel = channel(address.schema, namespace)
        self._notifier = PostgresNotifier(address.listen if borrowed is None else None, self._channel, self._watch)
        self._memory = PostgresCache()
        self._looks = exchange.FullScanSchedule()
        self._partitioned_at = 0.0
        self._swept = -THOROUGH_EVERY

    async def open(self) -> None:
        if not isinstance(self._connections, Connections):
            return
        warn_once(self.address.transport, self.address.shown, TLS_HINT)
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
        """Migrate the schema to this release. Return the numbers of the migrations that ran."""
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
        """Submit plain jobs in one statement. Return whether that was possible; if not, nothing was stored."""
        start = (self._memory.namespace_id, self._now())

        async def submit(raw: Connection) -> bool:
            try:
                return bool(await PostgresRunner(raw, self._schema).first(plain.statement, *start, *plain.values))
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
            return await PostgresRunner(raw, self._schema).row("submit", *start, *batch.columns)

        return await self._connections.run(submit)

    async def prepare_submit(self, jobs: Sequence[NewJob]) -> ExternalSubmit | PlainExternalSubmit:
        """Prepare a submit for a connection of the caller's, to the same database."""
        check_jobs(jobs)
        await self._ready()
        memory = self._memory
        if (plain := self.prepare_submit_blocking(jobs)) is not None:
            return plain
        await self._follow_rules()
        await self._add_classes(jobs)
        batch = SubmitBatch(jobs, memory.class_ids, memory.rule_index)
        # Careful, so that a job that is known already does not end the caller's transaction.
        start = (memory.namespace_id, self._now(), memory.rules_version, True, True)
        return ExternalSubmit(batch, queries(self._schema)["submit"], (*start, *batch.columns))

    async def _add_classes(self, jobs: Sequence[NewJob]) -> None:
        """Make the classes of jobs known. In a caller's transaction, others would wait for the caller."""
        memory = self._memory
        for key in {job.class_key for job in jobs} - memory.class_ids.keys():
            values = (key.lane, key.rung or "", list(key.needs), key.persist)
            memory.class_ids[key] = await self._first("class_add", memory.namespace_id, *values)

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

    async def submit_graph(self, graph: Graph) -> GraphReply:
        check_graph(graph)
        check_jobs([node.job for node in graph.nodes])
        await self._ready()
        memory = self._memory
        alone = False
        while True:
            if memory.rules_version < 0:
                await self._follow_rules()
            submit = GraphSubmit(graph, memory.class_ids, memory.rule_index)
            try:
                row = await self._connections.run(partial(self._submit_graph, submit, alone))
            except UnknownValues as demand:
                demand.teach(memory.rule_columns)
                continue
            except NeedsExclusive:
                alone = True
                continue
            if row["status"] != "stale":
                memory.class_ids.update(submit.classes(row))
                return submit.reply(row)
            await self._follow_rules()

    async def _submit_graph(self, submit: GraphSubmit, alone: bool, raw: Connection) -> Row:
        memory = self._memory
        start = (memory.namespace_id, self._now(), memory.rules_version, False, submit.careful, alone)
        try:
            return await PostgresRunner(raw, self._schema).row(
                "submit_graph", *start, *submit.columns, *memory.rule_columns.steps
            )
        except ServerError as problem:
            if problem.sqlstate == BATCH_ENDED:
                raise batch_closed(problem.message, cancelled=False) from problem
            demand = demand_of(problem)
            if demand is None:
                raise
            raise demand from problem

    async def prepare_graph(self, graph: Graph) -> ExternalGraph:
        """Prepare a submit of a graph for a connection of the caller's, to the same database."""
        check_graph(graph)
        jobs = [node.job for node in graph.nodes]
        check_jobs(jobs)
        await self._ready()
        memory = self._memory
        await self._follow_rules()
        await self._add_classes(jobs)
        submit = GraphSubmit(graph, memory.class_ids, memory.rule_index)
        start = (memory.namespace_id, self._now(), memory.rules_version, True, True, False)
        values = (*start, *submit.columns, *memory.rule_columns.steps)
        return ExternalGraph(submit, queries(self._schema)["submit_graph"], values)

    async def exchange(self, request: Exchange) -> ExchangeReply:
        await self._ready()
        memory = self._memory
        alone = due_done = settles = False
        while True:  # Rules may change meanwhile, and tasks appear.
            if memory.rules_version < 0:
                await self._follow_rules()
            if request.plan is not None and any(take.key not in memory.class_ids for take in request.plan.takes):
                await self._read(lambda tx: tx.classes())
            try:
                if not exchange.is_eligible(request):
                    return await self._write(lambda tx: self._exchange_within(tx, request), asker=request.worker_id)
                done = await self._connections.run(
                    lambda raw, alone=alone, due_done=due_done, settles=settles: exchange.exchange(  # type: ignore[misc]
                        PostgresRunner(raw, self._schema), memory, self._looks, request, self._now(),
                        alone=alone or memory.rule_columns.binding, due_done=due_done, settles=settles,
                    )
                )  # fmt: skip
            except UnknownValues as demand:
                demand.teach(memory.rule_columns)
                continue
            except SettlesFirst:
                settles = True
                continue
            except NeedsExclusive:
                alone = True
                continue
            if done.reply is not None:
                return done.reply
            if done.status == "stale":
                memory.rules_version = -1
            elif done.status == "alone":
                alone = True
            else:
                await self._write(make_due_eligible)
                due_done = True

    async def _exchange_within(self, tx: PostgresTransaction, request: Exchange) -> ExchangeReply:
        """Apply reports that the function does not handle, one by one, and do the rest of the exchange by it."""
        refused = await apply_reports(tx, request)
        await settle_moves(tx)
        await make_due_eligible(tx)
        rest = request._replace(finished=(), progress=())
        done = await exchange.exchange(
            tx.runner, self._memory, self._looks, rest, tx.now_at, alone=tx.alone, due_done=True
        )
        if done.reply is None:
            raise NeedsExclusive
        return done.reply._replace(refused=refused)

    async def _expired_leases(self, tx: Transaction, limit: int, payloads: bool) -> Sequence[Row]:
        thorough = self._sweeps_thoroughly()
        return await tx.db.rows("leases_expired", thorough, tx.now_at, tx.namespace_id, limit, payloads)

    def _sweeps_thoroughly(self) -> bool:
        """Return whether it is time to look for overdue leases whatever their workers' counts say."""
        now = time.monotonic()
        if now - self._swept < THOROUGH_EVERY:
            return False
        self._swept = now
        return True

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        touched = await super().prune(keep, limit=limit)
        if not self._partitioned_at or time.monotonic() - self._partitioned_at >= PARTITIONS_EVERY:
            self._partitioned_at = time.monotonic()
            await self._ready()
            await self._first("partitions_maintain", self._now())
        return touched

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        try:
            return await super().write(kind, name, body, if_version=if_version)
        except BaseException:
            self._memory.rules_version = -1  # What was read may have been undone.
            raise

    def subscribe(self, name: str) -> Subscription:
        return self._notifier.subscribe(name)

    async def schema(self) -> tuple[int | None, int]:
        return (await self._schema_version()).schema, migrate.NEWEST

    async def pending_changes(self) -> list[str]:
        """Return what ``migrate`` would change."""
        return migrate.pending_changes(await self._schema_version())

    async def _schema_version(self) -> SchemaVersion:
        with naming(self.address.shown):
            connection = await connect(self.address.url, pgbouncer=self.address.pgbouncer)
            try:
                return await migrate.look(connection, self._schema, self.address.shown)
            finally:
                await connection.close(timeout=5)

    async def describe(self) -> dict[str, str]:
        row = await self._connections.run(lambda raw: PostgresRunner(raw, self._schema).row("server_facts"))
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

    async def _write(
        self,
        verb: PostgresVerb[T],
        *,
        alone: bool = False,
        asker: str | None = None,
    ) -> T:
        """Run a function in a transaction, with others in the namespace or, where its rules ask for that, alone."""
        await self._ready()
        while True:
            chosen = alone or self._memory.rule_columns.binding
            try:
                return await self._connections.run(
                    lambda raw, chosen=chosen: self._transact(raw, verb, chosen, asker),  # type: ignore[misc]
                    "read_committed",
                )
            except (NeedsExclusive, SettlesFirst):
                alone = True
            except UnknownValues as demand:
                demand.teach(self._memory.rule_columns)

    async def _transact(
        self,
        raw: Connection,
        verb: PostgresVerb[T],
        alone: bool,
        asker: str | None,
    ) -> T:
        db, memory = PostgresRunner(raw, self._schema), self._memory
        entered = await db.row("begin", memory.namespace_id, self._now(), alone)
        if entered["rules"] != memory.rules_version:
            await read_rules(db, memory)
        if not alone and (entered["parked"] or memory.rule_columns.binding):
            raise NeedsExclusive
        tx = PostgresTransaction(
            db,
            now_at=entered["now_at"],
            memory=memory,
            has_blocked=entered["parked"],
            has_unsettled=entered["unsettled"],
            alone=alone,
        )
        value = await verb(tx)
        await settle_moves(tx)
        await tx.settle(but=asker)
        return value

    async def _read(self, verb: Verb[T]) -> T:
        """Run a function that changes nothing; all it reads is of one moment."""
        await self._notifier.settled()

        async def read(raw: Connection) -> T:
            db, memory = PostgresRunner(raw, self._schema), self._memory
            row = await db.row("now", self._now(), self.namespace)
            if row["namespace_id"] is None:
                memory = PostgresCache()
                memory.adopt(0, RuleIndex())
            else:
                memory.namespace_id = row["namespace_id"]
                if row["rules"] != memory.rules_version:
                    await read_rules(db, memory)
            return await verb(PostgresTransaction(db, now_at=row["now_at"], memory=memory))

        return await self._connections.run(read, "repeatable_read")

    async def _follow_rules(self) -> None:
        async def follow(raw: Connection) -> None:
            await read_rules(PostgresRunner(raw, self._schema), self._memory)

        await self._connections.run(follow)

    async def _ready(self) -> None:
        """See that the namespace is known, and that subscriptions here are listened for."""
        await self._notifier.settled()
        if not self._memory.namespace_id:
            self._memory.namespace_id = await self._first("namespace_add", self.namespace, self._channel)

    async def _first(self, name: str, *values: object) -> Any:
        """Execute one statement and return the first column of its first row."""
        return await self._connections.run(lambda raw: PostgresRunner(raw, self._schema).first(name, *values))

    async def _watch(self, names: list[str], begins: bool) -> None:
        if not self._memory.namespace_id:
            self._memory.namespace_id = await self._first("namespace_add", self.namespace, self._channel)
        ns = self._memory.namespace_id

        async def begin(raw: Connection) -> None:
            # Alone: an exchange that has looked for watchers, and found none, is committed before this one comes.
            db = PostgresRunner(raw, self._schema)
            await db.row("begin", ns, self._now(), True)
            await db.run("watch", ns, names, WATCHED_MS)

        if begins:
            await self._connections.run(begin, "read_committed")
        else:
            await self._first("unwatch", ns, names)

    def _now(self) -> int | None:
        """Return the time of a test's clock, or None to use the server's clock."""
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
