"""The statements of this store by name, with the table prefix of a file."""

from __future__ import annotations

import re
from functools import lru_cache

from headway.stores.assets import load_migrations, load_queries

PACKAGE = "headway.stores.sqlite"
STATEMENTS = load_queries(PACKAGE)
QUERIES = {name: statement.text.replace("{schema}.", "") for name, statement in STATEMENTS.items()}
MIGRATIONS = load_migrations(PACKAGE)
TABLES = tuple(re.findall(r"^CREATE TABLE (\w+)", "\n".join(text for _, text in MIGRATIONS), re.MULTILINE))

ROWS_AT_ONCE = 20  # Rows that one execution writes: apsw spends more on an execution than SQLite spends on a row.

_PARAMETER = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")
_TABLE = re.compile(
    rf"\b((?:FROM|JOIN|INTO|UPDATE|TABLE)\s+)({'|'.join(TABLES)})\b"  # Where a statement names a table,
    rf"|\b(\s+ON\s+)({'|'.join(TABLES)})\b(?=\s*\(|\s+WHEN)"  # an index or a trigger the one it is on,
    rf"|(?<![.\w])()({'|'.join(TABLES)})\b(?=\.\w)"  # and a column the one it is of.
)
_NAMED = re.compile(r"\b(CREATE (?:(?:UNIQUE )?INDEX|TRIGGER) |INDEXED BY |DROP INDEX )(\w+)")


@lru_cache(maxsize=8)
def queries(prefix: str) -> dict[str, str]:
    """Return every statement, for tables with this prefix."""
    return {name: prefixed(text, prefix) for name, text in QUERIES.items()}


@lru_cache(maxsize=8)
def numbered(prefix: str) -> dict[str, str]:
    """Return every statement with numbered parameters, in the order of the statement's header."""
    return {name: _number(text, STATEMENTS[name].parameters) for name, text in queries(prefix).items()}


@lru_cache(maxsize=8)
def for_many_rows(prefix: str) -> dict[str, str]:
    """Return the statements whose values all are in one list, for ``ROWS_AT_ONCE`` rows one after another."""
    found: dict[str, str] = {}
    for name, text in numbered(prefix).items():
        count = len(STATEMENTS[name].parameters)
        row = r",\s+".join(rf"\?{number}" for number in range(1, count + 1))
        rows = ", ".join(ROWS_AT_ONCE * ["(" + ", ".join(count * "?") + ")"])
        repeated, matches = re.subn(rf"\bVALUES \({row}\)", f"VALUES {rows}", text)
        if matches and count:
            found[name] = repeated
    return found


def migrations(prefix: str) -> list[tuple[int, str]]:
    """Return all migrations, for tables and indexes with this prefix."""
    return [(number, prefixed(text, prefix)) for number, text in MIGRATIONS]


def prefixed(text: str, prefix: str) -> str:
    """Return a text with a prefix before the names of tables and indexes, but not of columns."""
    if not prefix:
        return text
    text = _NAMED.sub(rf"\g<1>{prefix}\g<2>", text)
    return _TABLE.sub(lambda found: _with(found, prefix), text)


def _with(found: re.Match[str], prefix: str) -> str:
    before, name = next((found[at], found[at + 1]) for at in (1, 3, 5) if found[at + 1])
    return f"{before or ''}{prefix}{name}"


def _number(text: str, names: list[str]) -> str:
    return _PARAMETER.sub(lambda found: f"?{names.index(found[1]) + 1}", text)
