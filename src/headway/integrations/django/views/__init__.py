"""Views on Headway's tables, for the models: a folder of statements for each kind of database."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from headway.stores.shared_database import SQLITE_PREFIX, postgres_schema

VIEWS = ("iojob", "ioattempt")
WITH_VIEWS = ("postgresql", "sqlite")


def make_views(_: Any, editor: Any) -> None:
    """Make the views, in the database that holds the tables."""
    if not _holds_jobs(editor.connection):
        return
    if editor.connection.vendor == "sqlite":  # It cannot replace a view.
        drop_views(_, editor)
    tables = table_prefix(editor.connection)
    for name in VIEWS:
        text = (files(__name__) / editor.connection.vendor / f"{name}.sql").read_text(encoding="utf-8")
        body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
        editor.execute(body.format(view=editor.quote_name(f"ioqueue_{name}"), tables=tables), params=None)


def drop_views(_: Any, editor: Any) -> None:
    """Undo it. Headway's tables stay, and so do the jobs in them."""
    if _holds_jobs(editor.connection):
        for name in VIEWS:
            editor.execute(f"DROP VIEW IF EXISTS {editor.quote_name(f'ioqueue_{name}')}")


def table_prefix(connection: Any) -> str:
    """Return what the name of each of Headway's tables begins with."""
    if connection.vendor == "sqlite":
        return SQLITE_PREFIX
    from headway.integrations.django.address import store_address

    return f"{connection.ops.quote_name(postgres_schema(store_address()))}."


def _holds_jobs(connection: Any) -> bool:
    from headway.integrations.django.conf import database

    return bool(connection.alias == database() and connection.vendor in WITH_VIEWS)
