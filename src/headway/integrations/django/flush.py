"""Deletes the project's jobs when Django empties the database, as ``manage.py flush`` and TransactionTestCase do."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction

from headway.core.workflow import HELD_AT
from headway.integrations.django.conf import database, read_options
from headway.integrations.django.views import WITH_VIEWS, table_prefix
from headway.stores.shared_database import postgres_schema

# These rows stay, because processes cache the ids of namespaces and classes, and live workers are registered.
SKIPPED = frozenset({"format", "sequence", "namespace", "class", "worker", "watcher", "document"})
# The condition for rows of a namespace, by the first of these columns that a table has.
OWNERS = {
    "namespace_id": "= {namespace}",
    "class_id": "IN (SELECT class_id FROM {tables}class WHERE namespace_id = {namespace})",
    "seq": "IN (SELECT seq FROM {tables}job WHERE namespace_id = {namespace})",
    "dependant_seq": "IN (SELECT seq FROM {tables}job WHERE namespace_id = {namespace})",
}


def flush_jobs(alias: str) -> None:
    """Delete all jobs and totals of this project, if this database holds them."""
    connection = connections[alias]
    if alias != database() or connection.vendor not in WITH_VIEWS:
        return
    tables = table_prefix(connection)
    with _transaction(alias), connection.cursor() as cursor:
        columns = _tables(connection, cursor)
        namespace = _namespace(cursor, tables) if "namespace" in columns else None  # None before the first migration.
        if namespace is None:
            return
        for name in sorted(columns.keys() - SKIPPED, key=lambda name: name == "job"):  # Last: other tables refer to it.
            owner = next((column for column in OWNERS if column in columns[name]), None)
            if owner is not None:
                mine = OWNERS[owner].format(namespace=namespace, tables=tables)
                cursor.execute(f"DELETE FROM {tables}{name} WHERE {owner} {mine}")  # noqa: S608  (no value from outside)
        cursor.execute(
            f"SELECT 1 FROM {tables}document WHERE namespace_id = %s AND kind = 'rules' AND name = 'pauses'",  # noqa: S608
            [namespace],
        )
        paused = cursor.fetchone()
    if paused:
        from headway.integrations.django.queue import queue

        queue().resume_all()


def let_time_pass(alias: str, ms: int) -> None:
    """Move the due times of delayed and limited jobs this many milliseconds back, as if that time had passed."""
    tables = table_prefix(connections[alias])
    with _transaction(alias), connections[alias].cursor() as cursor:
        namespace = _namespace(cursor, tables)
        for table, column, step in (
            ("delayed", "due_at", ms),
            ("job", "due_at", ms),
            ("park", "open_at", ms),
            ("rate", "reached_us", ms * 1_000),
            ("dependant", "due_at", ms),
        ):
            owner = "seq" if table == "dependant" else "namespace_id"
            mine = OWNERS[owner].format(namespace=int(namespace or 0), tables=tables)
            held = f"AND {column} <> {HELD_AT}" if column == "due_at" else ""  # A held job waits for no moment.
            cursor.execute(
                f"UPDATE {tables}{table} SET {column} = {column} - %s "  # noqa: S608
                f"WHERE {owner} {mine} AND {column} IS NOT NULL {held}",
                [step],
            )


def _transaction(alias: str) -> Any:  # Django declares no type that pyright accepts in a ``with``.
    return transaction.atomic(using=alias)


def _namespace(cursor: Any, tables: str) -> int | None:
    """Read the id of this project's namespace."""
    cursor.execute(
        f"SELECT namespace_id FROM {tables}namespace WHERE name = %s",  # noqa: S608
        [read_options()[0].namespace],
    )
    row = cursor.fetchone()
    return None if row is None else int(row[0])


def flush_on_signal(*, using: str, **given: Any) -> None:
    """Delete the jobs on the ``post_migrate`` signal of ``flush``. Unlike that of ``migrate``, it has no ``plan``."""
    if "plan" not in given:
        flush_jobs(using)


def _tables(connection: Any, cursor: Any) -> dict[str, set[str]]:
    """Read the names of Headway's tables without their prefix, and the columns of each."""
    if connection.vendor == "sqlite":
        prefix = table_prefix(connection)
        cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, %s) = %s",
                       [len(prefix), prefix])  # fmt: skip
        found: dict[str, set[str]] = {}
        for (name,) in cursor.fetchall():
            cursor.execute(f"PRAGMA table_info({connection.ops.quote_name(name)})")
            found[name.removeprefix(prefix)] = {row[1] for row in cursor.fetchall()}
        return found
    from headway.integrations.django.address import store_address

    cursor.execute(
        # A delete from a partitioned table includes its partitions.
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
        "WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind IN ('r', 'p') AND NOT c.relispartition",
        [connection.ops.quote_name(postgres_schema(store_address()))],
    )
    columns: dict[str, set[str]] = {}
    for table, column in cursor.fetchall():
        columns.setdefault(table, set()).add(column)
    return columns
