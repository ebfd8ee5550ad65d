"""The tasks that a server can submit: those of the app, those of the catalogue, and any by name."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import Any

from headway.client.app import Headway
from headway.client.remote_task import task_from_catalogue, untyped_task
from headway.client.task import Task
from headway.policy_store.catalogue import TaskEntry, TaskReader, read_tasks
from headway.server.schemas.rest import NewTask

CACHE_SECONDS = 5.0  # Seconds for which the catalogue is cached. A changed task is seen within this time.
READ_MISSING_EVERY = 1.0  # Seconds between reads if a name is not in the cache, because it may be new.
NAMED_MAX = 1_000  # Unknown names that are cached.


class TaskCache:
    """Finds tasks by name. It caches the catalogue for some seconds."""

    def __init__(self, app: Headway) -> None:
        self._app = app
        self._reader = TaskReader()
        self._last_read = -math.inf
        self._look_again = -math.inf  # From when on another missing name may be looked up.
        self._entries: dict[str, TaskEntry] = {}
        self._tasks: dict[str, Task[Any, Any, Any]] = {}
        self._named: OrderedDict[str, Task[Any, Any, Any]] = OrderedDict()
        self.secrets: dict[str, tuple[str, ...]] = {}  # The parameters that a task hides, by its name.

    async def find(self, name: str) -> Task[Any, Any, Any]:
        """Return the task of this name: from the app, else the catalogue, else one that accepts any arguments."""
        own = self._app.tasks.get(name)
        if own is not None:
            return own
        now = time.monotonic()
        if now - self._last_read > CACHE_SECONDS or (name not in self._entries and now > self._look_again):
            self._look_again = now + READ_MISSING_EVERY
            await self._read()
        entry = self._entries.get(name)
        if entry is not None:
            if name not in self._tasks:
                self._tasks[name] = task_from_catalogue(self._app, entry)
            return self._tasks[name]
        if name not in self._named:
            self._named[name] = untyped_task(self._app, name)
            if len(self._named) > NAMED_MAX:
                self._named.popitem(last=False)
        return self._named[name]

    async def read_secrets(self) -> None:
        """Update ``secrets`` from the store, unless the catalogue was read a moment ago."""
        if time.monotonic() - self._last_read > CACHE_SECONDS:
            await self._read()

    async def entries(self) -> list[TaskEntry]:
        await self._read()
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    async def _read(self) -> None:
        self._last_read = time.monotonic()
        found = {entry.name: entry for entry in await read_tasks(await self._app.client.store(), self._reader)}
        self._tasks = {name: task for name, task in self._tasks.items() if found.get(name) == self._entries.get(name)}
        self._entries = found
        self.secrets.clear()
        self.secrets |= {name: entry.redact for name, entry in found.items() if entry.redact}
        self.secrets |= {name: tuple(task.options.redact) for name, task in self._app.tasks.items()}


class TaskOptionCache:
    """Caches tasks with the options of calls, which callers tend to repeat."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[Any, ...], tuple[Task[Any, Any, Any], Task[Any, Any, Any]]] = OrderedDict()

    def of(self, task: Task[Any, Any, Any], new: NewTask) -> Task[Any, Any, Any]:
        """Return the task with the options of a body, except those of a single job."""
        needs = None if new.required_capabilities is None else tuple(new.required_capabilities)
        key = (task.name, new.priority, new.timeout_seconds, new.max_retries, new.duration, new.on_stop, needs)
        known = self._made.get(key)
        if known is not None and known[0] is task:
            return known[1]
        made = task.using(
            priority=new.priority,
            timeout=new.timeout_seconds,
            max_retries=new.max_retries,
            duration=new.duration,
            on_stop=new.on_stop,
            needs=needs,
        )
        self._made[key] = (task, made)
        if len(self._made) > NAMED_MAX:
            self._made.popitem(last=False)
        return made
