"""The names of the processes that accept tasks by the fasdis routes, which show the name with each task.

The first digits of a trace id name the process that made it. A stored field would need a column or a record layout in
every store for one deprecated field of one route, so the trace id carries the name.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable

from headway.stores.base import Store

INSTANCES = "instance"
MARK = 16  # Digits of a trace id that identify the process. The other digits are random.


class Instances:
    """Makes trace ids for this process, and finds the process that made a trace id."""

    def __init__(self, store: Callable[[], Awaitable[Store]], name: str) -> None:
        self._store = store
        self._names: dict[str, str] = {}
        self._known = False
        self.name = name

    def rename(self, name: str) -> None:
        """Use another name: that of the worker in this process."""
        self.name, self._known = name, False

    async def new_trace(self) -> str:
        mark = hashlib.blake2b(self.name.encode(), digest_size=MARK // 2).hexdigest()
        if not self._known:
            await (await self._store()).write(INSTANCES, mark, self.name.encode())
            self._names[mark] = self.name
            self._known = True
        return mark + secrets.token_hex(MARK // 2)

    async def name_of(self, trace_id: str | None) -> str | None:
        """Return the name of the process that made a trace id, or None for any other trace id."""
        mark = (trace_id or "")[:MARK]
        if len(mark) < MARK:
            return None
        if mark not in self._names:
            for document in await (await self._store()).read(INSTANCES, mark):
                self._names[mark] = document.body.decode()
        return self._names.get(mark)
