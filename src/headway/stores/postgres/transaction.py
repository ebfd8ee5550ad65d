"""One transaction, statement by statement: the connection, its moment, the rules in force, and whom to tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from headway.core.job import ClassKey, JobId
from headway.core.policy.enforced import RuleIndex
from headway.stores.base import RULES
from headway.stores.postgres import rows
from headway.stores.postgres.connections import Connection
from headway.stores.postgres.scan_hints import ScanHints
from headway.stores.postgres.statements import queries
from headway.stores.rule_codec import read_rulebook

MINUTE = 60_000
ALL = 1_000_000  # More rows than there can be leases.
LOWEST = -(2**63)

Row: TypeAlias = Any  # A record of asyncpg, which has no types.


class PostgresCache:
    """What a process remembers between transactions: the numbers of classes, how far it has come, the rules."""

    def __init__(self) -> None:
        self.namespace_id = 0
        self.class_ids: dict[ClassKey, int] = {}
        self.floors: dict[int, tuple[int, int]] = {}  # By class: how far claims have come, and after which rewind.
        self.heads = ScanHints()
        self.first_lease = 0  # The lowest number among the leases, when they were last looked at.
        self.spots: dict[str | None, tuple[int, int]] = {}  # By worker: where its row was last.
        self.unplain: set[int] = set()  # Classes that tenants share: one job of them is not to be kept the short way.
        self.rules_version = -1
        self.rule_index = RuleIndex()

    def adopt(self, version: int, rule_index: RuleIndex) -> None:
        self.rules_version, self.rule_index = version, rule_index


class StatementRunner:
    """A connection that knows the statements by their names."""

    def __init__(self, raw: Connection, schema: str) -> None:
        self.raw = raw
        self._queries = queries(schema)

    async def run(self, name: str, *values: Any) -> list[Row]:
        """Execute a statement with its values in the order of its header."""
        found: list[Row] = await self.raw.fetch(self._queries[name], *values)
        return found

    async def row(self, name: str, *values: Any) -> Row:
        """Return the first row, or None."""
        return await self.raw.fetchrow(self._queries[name], *values)

    async def first(self, name: str, *values: Any) -> Any:
        """Return the first column of the first row, or None."""
        return await self.raw.fetchval(self._queries[name], *values)


class PostgresTransaction:
    """Gathers what a verb changed; ``settle`` wakes and tells whoever that concerns, with the commit."""

    def __init__(
        self, db: StatementRunner, *, now_at: int, memory: PostgresCache, parked: bool = False, alone: bool = False
    ) -> None:
        self.db = db
        self.now_at = now_at
        self.memory = memory
        self.namespace_id = memory.namespace_id
        self.parked = parked  # Whether any job waits for a limit of its own.
        self.alone = alone
        self.eligible: list[int] = []  # The class of each job that became eligible.
        self.changed: list[JobId] = []
        self.rung: list[str] = []  # Workers whose keepers are to be told something.
        self._counts: dict[str, int] = {}

    @property
    def rule_index(self) -> RuleIndex:
        """The rules in force."""
        return self.memory.rule_index

    async def class_id(self, key: ClassKey) -> int:
        """Return the number of a class; one that is new becomes known."""
        known = self.memory.class_ids.get(key)
        if known is None:
            needs = sorted(key.needs)
            known = int(
                await self.db.first("class_add", self.namespace_id, key.lane, key.rung or "", needs, key.persist)
            )
        return known

    async def classes(self) -> dict[int, ClassKey]:
        """Return all classes by their numbers, those of other processes too."""
        found = {
            row["class_id"]: rows.class_key(row["lane"], row["rung"], row["needs"], row["persist"])
            for row in await self.db.run("classes", self.namespace_id)
        }
        self.memory.class_ids.update({key: class_id for class_id, key in found.items()})
        return found

    def count(self, counts: Mapping[str, int]) -> None:
        """Add to this minute's totals."""
        for what, count in counts.items():
            self._counts[what] = self._counts.get(what, 0) + count

    async def wake_all(self) -> None:
        """Wake every waiting worker: what they may claim has changed."""
        await self.db.run("wake_all", self.namespace_id, self.now_at)

    async def settle(self, *, but: str | None = None) -> None:
        """Write the totals, wake waiting workers for what became eligible, and tell watchers what changed."""
        if self._counts:
            kinds, counts = list(self._counts), list(self._counts.values())
            await self.db.run("count", self.namespace_id, self.now_at, kinds, counts)
        if self.eligible:
            await self.db.run("wake", self.namespace_id, self.now_at, self.eligible, but)
        for worker_id in self.rung:
            await self.db.run("notify", self.namespace_id, "k", worker_id)
        if self.changed:
            await self.db.run("notify_jobs", self.namespace_id, self.changed)


async def read_rules(db: StatementRunner, memory: PostgresCache) -> None:
    """Read the rules in force, and which version they are of."""
    while True:
        version = await db.first("rules_version", memory.namespace_id)
        parts = await db.run("documents", memory.namespace_id, RULES, None)
        if version == await db.first("rules_version", memory.namespace_id):
            memory.adopt(version, read_rulebook(row["body"] for row in parts))
            return


def binding(rule_index: RuleIndex) -> bool:
    """Return whether rules hold jobs back by what others do, so that claims must follow one another."""
    return not rule_index.has_no_limits or bool(rule_index.rules.rungs) or rule_index.rules.pool_reserve is not None
