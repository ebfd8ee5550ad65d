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
    for setting, address in (("STORE", options.store), ("REDIS_URL", options.transient_store)):
        try:
            if address is not None:
                open_store(address, options.namespace)
        except ConfigError as problem:
            found.append(Error(f"IOQUEUE_{setting}: {problem}", id="ioqueue.E001"))
    try:
        from headway.integrations.django.queue import Queue

        Queue()
    except ConfigError as problem:
        found.append(Error(f"the queue cannot be set up: {problem}", id="ioqueue.E002"))
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
