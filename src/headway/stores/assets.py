"""Loads the SQL statements and migrations of a store from its files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

SHARED = "headway.stores.sql"  # Statements that have the same text in every dialect.

_BLOCK = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_PARAMETERS = re.compile(r"^-- params  (.*(?:\n--    +.*)*)", re.MULTILINE)  # A deeper indented line continues it.


class Statement(NamedTuple):
    """A statement and the parameters that its header names, in their order."""

    text: str
    parameters: list[str]


def load_queries(package: str) -> dict[str, Statement]:
    """Read every ``-- name: NAME`` block of the files ``queries/*.sql`` of a store's package, by name.

    A line ``-- use NAME`` is replaced by the block ``-- part: NAME`` of any of these files.
    """
    blocks: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for folder in (files(SHARED) / "queries", files(package) / "queries"):
        for entry in folder.iterdir():
            if entry.name.endswith(".sql"):
                _, *found = _BLOCK.split(entry.read_text())
                for kind, name, text in zip(found[::3], found[1::3], found[2::3], strict=True):
                    blocks[kind][name] = text
    return {name: Statement(_join(text, blocks["part"]), _parameters(text)) for name, text in blocks["name"].items()}


def load_migrations(package: str) -> list[tuple[int, str]]:
    """Read every ``migrations/NNNN_name.sql`` of a store's package with its number, in order."""
    folder = files(package) / "migrations"
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(int(entry.name[:4]), entry.read_text()) for entry in entries]


def describe_migrations(migrations: Sequence[tuple[int, str]], since: int | None) -> list[str]:
    """Return the first line of each migration that a schema of this version lacks: its name, and what it is for."""
    return [text.partition("\n")[0].removeprefix("-- ") for number, text in migrations if number > (since or 0)]


def _join(text: str, parts: dict[str, str]) -> str:
    lines = [
        parts[line.removeprefix("-- use ").strip()] if line.startswith("-- use ") else line
        for line in text.splitlines()
    ]
    return "\n".join(line for block in lines for line in block.splitlines() if line and not line.startswith("--"))


def _parameters(text: str) -> list[str]:
    [found] = _PARAMETERS.findall(text)
    names = [name.strip(" -") for name in re.split(r"[,\n]", found)]
    return [name for name in names if name and name != "none"]
