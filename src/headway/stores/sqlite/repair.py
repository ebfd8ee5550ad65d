"""Repairs texts that are not UTF-8, which another program or a bad disk has left in the file."""

from __future__ import annotations

import logging

from headway.core.log_event import LogEvent
from headway.stores.sqlite.connection import SqliteConnection

log = logging.getLogger("headway.stores")

UNREADABLE = "not UTF-8"  # In place of a job's rule for retries: no JSON, so the job ends as a dead letter.


def repair_texts(connection: SqliteConnection) -> int:
    """Replace what is not UTF-8 in every text of the file by escapes. Return how many texts were replaced.

    It walks all tables, so it is done only after a read has failed. A job with such a text is marked as unreadable.
    """
    raw = connection.raw
    repaired = 0
    raw.execute("BEGIN IMMEDIATE")
    try:
        tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
        for table in tables:
            columns = [row[1] for row in raw.execute(f'PRAGMA table_info("{table}")').fetchall() if row[2] == "TEXT"]
            for column in columns:
                repaired += _repair_column(connection, table, column)
        raw.execute("COMMIT")
    except BaseException:
        raw.execute("ROLLBACK")
        raise
    if repaired:
        log.warning(LogEvent("store.texts_repaired", texts=repaired))
    return repaired


def _repair_column(connection: SqliteConnection, table: str, column: str) -> int:
    raw = connection.raw
    found = raw.execute(
        f'SELECT DISTINCT CAST("{column}" AS BLOB) FROM "{table}" WHERE typeof("{column}") = \'text\''  # noqa: S608
    ).fetchall()
    damaged = [text for (text,) in found if not _is_utf8(text)]
    for text in damaged:
        where = f'WHERE CAST("{column}" AS BLOB) = ?'
        if table == "job":
            raw.execute(f"UPDATE job SET retry = ? {where}", (UNREADABLE, text))  # noqa: S608
        fixed = UNREADABLE if (table, column) == ("job", "retry") else text.decode("utf-8", "backslashreplace")
        raw.execute(f'UPDATE "{table}" SET "{column}" = ? {where}', (fixed, text))  # noqa: S608
    return len(damaged)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
