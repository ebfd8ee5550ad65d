"""The tasks that this process can make jobs of: the app's, those of the catalogue, and any by name."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import Any

from headway.client.app import Headway
from headway.client.stand_in import named_only, stand_in
from headway.client.task import Task
from headway.engine.catalogue import TaskEntry, read_tasks

LOOK_EVERY = 5.0  # Seconds between looks at the catalogue,
LOOK_MISSED = 1.0  # and after a name that was not in it.
NAMED_MAX = 1_000  # Names without a task that are remembered.


class KnownTasks:
    """Finds a task by name. The catalogue is read at most once in a while, however often somebody asks."""

    def __init__(self, app: Headway) -> None:
        self._app = app
        self._looked = -math.inf
        self._entries: dict[str, TaskEntry] = {}
        self._tasks: dict[str, Task[Any, Any, Any]] = {}
        self._named: OrderedDict[str, Task[Any, Any, Any]] = OrderedDict()

    async def find(self, name: str) -> Task[Any, Any, Any]:
        """Give the task of this name: the app's own, the catalogue's, else one that takes what it is given."""
        own = self._app.tasks.get(name)
        if own is not None:
            return own
        age = time.monotonic() - self._looked
        if age > LOOK_EVERY or (name not in self._entries and age > LOOK_MISSED):
            await self._look()
        entry = self._entries.get(name)
        if entry is None:
            return self._by_name(name)
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = stand_in(self._app, entry)
        return task

    async def entries(self) -> list[TaskEntry]:
        """Give the catalogue."""
        await self._look()
        return sorted(self._entries.values(), key=lambda entry: entry.name)

    async def _look(self) -> None:
        self._looked = time.monotonic()
        found = {entry.name: entry for entry in await read_tasks(await self._app.client.store())}
        self._tasks = {name: task for name, task in self._tasks.items() if found.get(name) == self._entries.get(name)}
        self._entries = found

    def _by_name(self, name: str) -> Task[Any, Any, Any]:
        task = self._named.get(name)
        if task is None:
            task = self._named[name] = named_only(self._app, name)
            if len(self._named) > NAMED_MAX:
                self._named.popitem(last=False)
        return task
