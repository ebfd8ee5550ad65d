"""A stand-in for the next release: this source with another version, a newer format, and one more migration."""

from __future__ import annotations

import shutil
from pathlib import Path

import headway

VERSION = "99.0.0"
SQL = "-- {number:04}_next: what the next release adds.\nCREATE TABLE {schema}next_release (value INTEGER NOT NULL);\n"


def build(folder: Path, *, oldest_writer: int) -> Path:
    """Copy this source and change it. Return the folder for PYTHONPATH."""
    source = folder / "headway"
    ignored = shutil.ignore_patterns("__pycache__", "static")
    shutil.copytree(Path(headway.__file__).parent, source, ignore=ignored)
    _replace(source / "version.py", f'"{headway.__version__}"', f'"{VERSION}"')
    _replace(source / "stores" / "base.py", "\nFORMAT = 1\n", "\nFORMAT = 2\n")
    _replace(source / "stores" / "base.py", "\nOLDEST_WRITER = 1\n", f"\nOLDEST_WRITER = {oldest_writer}\n")
    for store, schema in (("sqlite", ""), ("postgres", "{schema}.")):
        migrations = source / "stores" / store / "migrations"
        number = max(int(file.name[:4]) for file in migrations.glob("*.sql")) + 1
        (migrations / f"{number:04}_next.sql").write_text(SQL.format(number=number, schema=schema))
    functions = source / "stores" / "postgres" / "statements.py"
    text = functions.read_text()
    start = text.index("\nFUNCTIONS_VERSION = ") + len("\nFUNCTIONS_VERSION = ")
    end = text.index("\n", start)
    functions.write_text(f"{text[:start]}{int(text[start:end]) + 1}{text[end:]}")
    return folder


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    if old not in text:
        raise ValueError(f"{file} does not contain {old!r}; change next_release.py too")
    file.write_text(text.replace(old, new))
