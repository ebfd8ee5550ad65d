"""Views on Headway's tables, for the models."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

VIEWS = ("iojob", "ioattempt")


def make_views(_: Any, editor: Any) -> None:
    """Make the views, in the database that holds the tables."""
    from headway.integrations.django.address import store_address
    from headway.stores.postgres.address import read_address

    if not _holds_jobs(editor.connection):
        return
    schema = editor.quote_name(read_address(store_address()).schema)
    for name in VIEWS:
        text = (files(__name__) / f"{name}.sql").read_text(encoding="utf-8")
        body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
        editor.execute(body.format(view=editor.quote_name(f"ioqueue_{name}"), schema=schema))


def drop_views(_: Any, editor: Any) -> None:
    """Undo it. Headway's tables stay, and so do the jobs in them."""
    if _holds_jobs(editor.connection):
        for name in VIEWS:
            editor.execute(f"DROP VIEW IF EXISTS {editor.quote_name(f'ioqueue_{name}')}")


def _holds_jobs(connection: Any) -> bool:
    from headway.integrations.django.conf import database

    return bool(connection.alias == database() and connection.vendor == "postgresql")
