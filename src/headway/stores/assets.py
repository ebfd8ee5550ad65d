"""Loads the statements that stores keep in files of their own."""

from __future__ import annotations

from importlib.resources import files


def load_queries(package: str) -> dict[str, str]:
    """Read every ``queries/*.sql`` of a store's package, by file name without its ending.

    A line ``-- use NAME`` is replaced by the text of ``queries/shared/NAME.sql``.
    """
    folder = files(package) / "queries"
    shared = {entry.name.removesuffix(".sql"): entry.read_text() for entry in (folder / "shared").iterdir()}
    return {
        entry.name.removesuffix(".sql"): _join(entry.read_text(), shared)
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }


def load_migrations(package: str) -> list[tuple[int, str]]:
    """Read every ``migrations/NNNN_name.sql`` of a store's package, with its number, in order."""
    folder = files(package) / "migrations"
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [(int(entry.name[:4]), entry.read_text()) for entry in entries]


def _join(text: str, shared: dict[str, str]) -> str:
    lines = [
        shared[line.removeprefix("-- use ").strip()] if line.startswith("-- use ") else line
        for line in text.splitlines()
    ]
    return "\n".join(line for block in lines for line in block.splitlines() if not line.startswith("--"))
