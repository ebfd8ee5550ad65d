"""The system checks of ``manage.py check`` for a project's queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from headway.core.errors import ConfigError
from headway.integrations.django.address import SQLITE_HINT, WORKS
from headway.integrations.django.conf import database, read_options
from headway.integrations.django.framework import FRAMEWORK, RELEASE
from headway.integrations.django.loading import declared_django_tasks, module_of_task, task_modules
from headway.integrations.django.queue import Queue, in_tests, is_of_django_tasks, queue
from headway.integrations.django.registry import IoTask
from headway.integrations.django.sqlite import is_in_memory
from headway.stores.open import open_store
from headway.stores.shared_database import check_sqlite


def check_settings(**_: Any) -> list[CheckMessage]:
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
        Queue()
    except ConfigError as problem:
        found.append(Error(f"the queue cannot be set up: {problem}", id="ioqueue.E002"))
    return found


def check_database(**_: Any) -> list[CheckMessage]:
    """Check that the database can hold jobs, without connecting to it."""
    alias = database()
    if alias not in connections:
        return [Error(f"IOQUEUE_DATABASE names {alias!r}, which is not in DATABASES.", id="ioqueue.E003")]
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return [*_check_sqlite(alias)]
    if connection.vendor != "postgresql":
        return [Error(f"Jobs cannot be kept in {alias!r}: it is {connection.vendor}.", hint=WORKS, id="ioqueue.E004")]
    missing = [name for name in ("asyncpg", "psycopg") if find_spec(name) is None]
    if missing:
        return [Error(f"The queue needs {' and '.join(missing)}.", hint=WORKS, id="ioqueue.E005")]
    return []


def check_tasks(**_: Any) -> list[CheckMessage]:
    """Check that a worker will find each task of the modules that this process has imported."""
    options, _problems = read_options()
    loaded = {name for name in task_modules(options.task_modules) if name in sys.modules}
    reached = loaded | {name for module in loaded for name in _referred_to(sys.modules[module])}
    functions = {name: task.fn for name, task in queue().tasks.items() if not is_of_django_tasks(task)}
    functions |= {task.module_path: task.func for task, _ in declared_django_tasks()}
    return [
        Warning(
            f"No worker will know the task {name}, which {function.__module__} declares.",
            hint="Import that module in tasks.py of an installed app, or add it to the settings: "
            f'IOQUEUE_TASK_MODULES = ["{function.__module__}"]',
            id="ioqueue.W006",
        )
        for name, function in sorted(functions.items())
        if "<locals>" not in function.__qualname__  # Such a task belongs to a test.
        and function.__module__ not in reached
        and (name in queue().crons or module_of_task(name) != function.__module__)  # Workers import no cron by name.
    ]


def _referred_to(module: ModuleType) -> set[str]:
    """Return the modules that a module imports, or imports functions, classes and tasks from."""
    found = set()
    for value in list(vars(module).values()):
        kind = type(value)  # ``isinstance`` would evaluate lazy objects.
        if kind is ModuleType:
            found.add(value.__name__)
        elif kind is FunctionType or issubclass(kind, type):
            found.add(value.__module__)
        elif issubclass(kind, IoTask):
            found.add(value.fn.__module__)
        elif kind.__module__ == f"{FRAMEWORK}.base" and hasattr(value, "func"):
            found.add(value.func.__module__)
    return found


def _check_sqlite(alias: str) -> Iterator[CheckMessage]:
    try:
        check_sqlite()
    except ConfigError as problem:
        yield Error(str(problem), id="ioqueue.E005")
    options, _ = read_options()
    if options.store is not None:
        yield Error("IOQUEUE_STORE is set, and the jobs are kept in SQLite.", hint=SQLITE_HINT, id="ioqueue.E007")
    if is_in_memory(alias) and not in_tests():
        yield Warning(
            f"The database {alias!r} is in memory: jobs can be submitted and looked at, and no worker sees them.",
            hint="Give it a file.",
            id="ioqueue.W003",
        )
    if not _begins_as_writer(alias):
        yield Warning(
            'A transaction that reads before it submits a job fails with "database is locked", however long the '
            f"timeout, if a worker has written in between: transactions on {alias!r} begin as readers.",
            hint='Let them begin as writers: "OPTIONS": {"transaction_mode": "IMMEDIATE"} in DATABASES.',
            id="ioqueue.W004",
        )
    if connections[alias].timezone_name != "UTC":
        yield Warning(
            f"Times in the database {alias!r} are not UTC, and those of IOJob always are.",
            hint="Set USE_TZ = True, and no TIME_ZONE for this database.",
            id="ioqueue.W005",
        )


def _begins_as_writer(alias: str) -> bool:
    """Return whether transactions take the write lock at their start. Before Django 5.1 this cannot be set."""
    if RELEASE < (5, 1):
        return True
    mode = (connections[alias].settings_dict.get("OPTIONS") or {}).get("transaction_mode")
    return str(mode or "").upper() in ("IMMEDIATE", "EXCLUSIVE")
