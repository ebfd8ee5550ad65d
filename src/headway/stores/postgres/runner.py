"""Runs statements by name on one connection, and caches values between transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from headway.core.job import ClassKey
from headway.core.policy.enforced import RuleIndex
from headway.stores.base import RULES
from headway.stores.postgres.connections import Connection
from headway.stores.postgres.rule_columns import RuleColumns
from headway.stores.postgres.scan_hints import ScanHints
from headway.stores.postgres.statements import queries
from headway.stores.rule_codec import RuleReader
from headway.stores.sql.transaction import StatementRunner

Row: TypeAlias = Any  # A record of asyncpg, which has no types.


class PostgresCache:
    """Values that a process caches between transactions: class ids, scan starts and rules."""

    def __init__(self) -> None:
        self.namespace_id = 0
        self.class_ids: dict[ClassKey, int] = {}
        self.line_starts: dict[int, tuple[int, int]] = {}  # By class: how far claims have come, and after which rewind.
        self.heads = ScanHints()
        self.first_lease = 0  # The lowest number among the leases, when they were last looked at.
        self.spots: dict[str | None, tuple[int, int]] = {}  # By worker: where its row was last.
        self.unplain: set[int] = set()  # Classes that tenants share: one job of them is not to be kept the short way.
        self.rules_version = -1
        self.rule_index = RuleIndex()
        self.rule_reader = RuleReader()
        self.rule_columns = RuleColumns(self.rule_index)

    def adopt(self, version: int, rule_index: RuleIndex) -> None:
        self.rules_version, self.rule_index = version, rule_index
        self.rule_columns = RuleColumns(rule_index)


class PostgresRunner:
    """Runs statements by name on a connection."""

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

    async def rows(self, name: str, *values: Any) -> list[Row]:
        """Return all rows. They are read by position or by name."""
        return await self.run(name, *values)

    async def run_many(self, name: str, rows: Sequence[Sequence[Any]], *shared: Any) -> None:
        """Execute one statement with the columns of the rows as its parameters."""
        if rows:
            await self.run(name, *shared, *map(list, zip(*rows, strict=True)))


async def read_rules(db: StatementRunner, memory: PostgresCache) -> None:
    """Read the current rules and their version."""
    while True:
        version = await db.first("rules_version", memory.namespace_id)
        parts = await db.run("documents", memory.namespace_id, RULES, None)
        if version == await db.first("rules_version", memory.namespace_id):
            memory.adopt(version, RuleIndex(memory.rule_reader.join((row["name"], row["body"]) for row in parts)))
            return
