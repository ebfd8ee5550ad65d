"""What ``manage.py check`` says about a project's queue."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from headway.core.errors import ConfigError
from headway.integrations.django.address import NO_OTHER_WAY, WORKS
from headway.integrations.django.conf import database, read_options
from headway.integrations.django.framework import RELEASE
from headway.integrations.django.sqlite import is_in_memory
from headway.stores.open import open_store
from headway.stores.sqlite.guest import check_library


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
    if connection.vendor == "sqlite":
        return _check_sqlite(alias)
    if connection.vendor != "postgresql":
        return [Error(f"Jobs cannot be kept in {alias!r}: it is {connection.vendor}.", hint=WORKS, id="ioqueue.E004")]
    missing = [name for name in ("asyncpg", "psycopg") if find_spec(name) is None]
    if missing:
        return [Error(f"The queue needs {' and '.join(missing)}.", hint=WORKS, id="ioqueue.E005")]
    return []


def _check_sqlite(alias: str) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    try:
        check_library()
    except ConfigError as problem:
        found.append(Error(str(problem), id="ioqueue.E005"))
    options, _ = read_options()
    if options.store is not None:
        found.append(
            Error("IOQUEUE_STORE is set, and the jobs are kept in SQLite.", hint=NO_OTHER_WAY, id="ioqueue.E007")
        )
    if is_in_memory(alias):
        found.append(
            Warning(
                f"The database {alias!r} is in memory: jobs can be submitted and looked at, and no worker sees them.",
                hint="Give it a file; for tests silence ioqueue.W003.",
                id="ioqueue.W003",
            )
        )
    if not _begins_as_writer(alias):
        found.append(
            Warning(
                'A transaction that reads before it submits a job fails with "database is locked", however long the '
                f"timeout, if a worker has written in between: transactions on {alias!r} begin as readers.",
                hint='Let them begin as writers: "OPTIONS": {"transaction_mode": "IMMEDIATE"} in DATABASES.',
                id="ioqueue.W004",
            )
        )
    if connections[alias].timezone_name != "UTC":
        found.append(
            Warning(
                f"Times in the database {alias!r} are not UTC, and those of IOJob always are.",
                hint="Set USE_TZ = True, and no TIME_ZONE for this database.",
                id="ioqueue.W005",
            )
        )
    return found


def _begins_as_writer(alias: str) -> bool:
    """Tell whether transactions take the right to write at once; before Django 5.1 there is no choice to ask for."""
    if RELEASE < (5, 1):
        return True
    mode = (connections[alias].settings_dict.get("OPTIONS") or {}).get("transaction_mode")
    return str(mode or "").upper() in ("IMMEDIATE", "EXCLUSIVE")
