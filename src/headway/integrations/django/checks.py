"""What ``manage.py check`` says about a project's queue."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from headway.core.errors import ConfigError
from headway.integrations.django.address import WORKS
from headway.integrations.django.conf import database, read_options
from headway.stores.open import open_store


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check the ``IOQUEUE_*`` settings themselves."""
    options, problems = read_options()
    found: list[CheckMessage] = [
        Warning(problem.message, hint="It changes nothing; remove it, or correct its name.", id="ioqueue.W001")
        if problem.unknown
        else Error(problem.message, id="ioqueue.E001")
        for problem in problems
    ]
    if options.store is not None:
        try:
            open_store(options.store, options.namespace)
        except ConfigError as problem:
            found.append(Error(f"IOQUEUE_STORE: {problem}", id="ioqueue.E001"))
    try:
        from headway.integrations.django.queue import Queue

        Queue()
    except ConfigError as problem:
        found.append(Error(f"the queue cannot be set up: {problem}", id="ioqueue.E002"))
    from django.conf import settings

    if hasattr(settings, "IOQUEUE_REDIS_URL") or hasattr(settings, "IOQUEUE_REDIS_QUEUE_KEY"):
        found.append(
            Warning(
                "IOQUEUE_REDIS_URL and IOQUEUE_REDIS_QUEUE_KEY have no effect in this release: transient jobs pass "
                "through the database, ranked together with the others.",
                hint="Leave the settings away, or silence ioqueue.W002.",
                id="ioqueue.W002",
            )
        )
    return found


def check_database(**_: Any) -> list[CheckMessage]:
    """Check that the database can hold jobs. It is not connected to."""
    alias = database()
    if alias not in connections:
        return [Error(f"IOQUEUE_DATABASE names {alias!r}, which is not in DATABASES.", id="ioqueue.E003")]
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return [Error(f"Jobs cannot be kept in {alias!r}: it is {connection.vendor}.", hint=WORKS, id="ioqueue.E004")]
    missing = [name for name in ("asyncpg", "psycopg") if find_spec(name) is None]
    if missing:
        return [Error(f"The queue needs {' and '.join(missing)}.", hint=WORKS, id="ioqueue.E005")]
    return []
