"""Reads the version of a schema and migrates it to this release."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.errors import NotAStore, StoreError, StoreTooNew
from headway.stores.assets import describe_migrations
from headway.stores.base import FORMAT, OLDEST_READER, OLDEST_WRITER
from headway.stores.postgres.connections import Connection
from headway.stores.postgres.statements import FUNCTIONS_VERSION, MIGRATIONS, fill, functions, lock_number, queries

NEWEST = MIGRATIONS[-1][0]
OLDEST_SERVER = 13


class SchemaVersion(NamedTuple):
    """What a schema holds: its version and that of its newest functions; None where it is empty or missing.

    ``has_functions``: it has those of this release. A schema that a newer release created has only newer ones.
    """

    schema: int | None
    functions: int | None
    has_functions: bool = False


def pending_changes(found: SchemaVersion) -> list[str]:
    """Return what a migration of such a schema would change, one line for each step."""
    changes = describe_migrations(MIGRATIONS, found.schema)
    if not found.has_functions:
        was = "none" if found.functions is None else f"version {found.functions}, which stay for other workers"
        changes.append(f"functions: add version {FUNCTIONS_VERSION} (there now: {was})")
    return changes


async def look(connection: Connection, schema: str, shown: str) -> SchemaVersion:
    """Read a schema's version without changing it. Raises ``NotAStore``, ``StoreTooNew``."""
    if connection.get_server_version().major < OLDEST_SERVER:
        raise StoreError(f"{shown} runs PostgreSQL {connection.get_server_version().major}; Headway needs 13 or newer")
    tables = await connection.fetchrow(queries(schema)["tables"], schema)
    if not tables["ours"]:
        if tables["any"]:
            raise NotAStore(
                f"the schema {schema} of {shown} holds tables of another program; "
                "give another one with ?schema=NAME in HEADWAY_STORE",
                schema=schema,
            )
        return SchemaVersion(None, None)
    known = {row["name"]: row["value"] for row in await connection.fetch(queries(schema)["format_read"])}
    if known.get("oldest_writer", 0) > FORMAT:
        raise StoreTooNew(
            f"the schema {schema} of {shown} was written by a newer Headway (format {known.get('format')}; "
            f"this one writes {FORMAT}): upgrade Headway here",
            schema=schema,
        )
    has_functions = await connection.fetchval(queries(schema)["functions_exist"], schema)
    return SchemaVersion(known.get("schema"), known.get("functions"), has_functions)


async def prepare(connection: Connection, schema: str, shown: str) -> None:
    """Check that a schema can be used. Fill an empty schema. Raises ``StoreError`` for an older one."""
    found = await look(connection, schema, shown)
    if found.schema is None:
        await migrate(connection, schema, shown)
    elif found.schema < NEWEST or not found.has_functions:
        lacks = f"is of an older Headway (schema {found.schema}, this one needs {NEWEST})"
        if found.schema >= NEWEST:
            lacks = f"has no functions of version {FUNCTIONS_VERSION}, which this Headway calls"
        raise StoreError(
            f"the schema {schema} of {shown} {lacks}: run `headway migrate`, at a moment you choose", schema=schema
        )


async def migrate(connection: Connection, schema: str, shown: str, *, to: int | None = None) -> list[int]:
    """Migrate a schema to the newest version in one transaction, under a lock.

    Return the numbers of the migrations that ran.
    """
    async with connection.transaction(isolation="read_committed"):
        await connection.fetchval(queries(schema)["migrate_lock"], lock_number(schema, "migrate"))
        found = await look(connection, schema, shown)
        if found.schema is None and not await connection.fetchval(queries(schema)["schema_exists"], schema):
            await connection.execute(fill("CREATE SCHEMA {schema}", schema))
        steps = [
            (number, text)
            for number, text in MIGRATIONS
            if number > (found.schema or 0) and (to is None or number <= to)
        ]
        for _number, text in steps:
            await connection.execute(fill(text, schema))
        written: dict[str, int] = {}
        if steps:
            written["schema"] = steps[-1][0]
        if to is None and not found.has_functions:
            for text in functions(schema):
                await connection.execute(text)
            await connection.fetchval(queries(schema)["partitions_maintain"], None)
            if (found.functions or 0) < FUNCTIONS_VERSION:
                written["functions"] = FUNCTIONS_VERSION
        if written:  # A newer release may have written the schema. Its numbers must stay.
            written |= {"format": FORMAT, "oldest_reader": OLDEST_READER, "oldest_writer": OLDEST_WRITER}
            await connection.executemany(queries(schema)["format_write"], list(written.items()))
    return [number for number, _ in steps]
