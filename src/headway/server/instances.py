"""The names of the processes that accept tasks, so that a reader of a task learns which one did."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable

from headway.stores.base import Store

INSTANCES = "instance"
MARK = 16  # Digits of a trace id that name the process which began it; the others are random.


class Instances:
    """Begins traces in this process's name, and tells whose name a trace was begun in."""

    def __init__(self, store: Callable[[], Awaitable[Store]], name: str) -> None:
        self._store = store
        self._names: dict[str, str] = {}
        self._known = False
        self.name = name

    def rename(self, name: str) -> None:
        """Go by another name: that of the worker in this process."""
        self.name, self._known = name, False

    async def new_trace(self) -> str:
        """Begin a trace."""
        mark = _mark(self.name)
        if not self._known:
            await (await self._store()).write(INSTANCES, mark, self.name.encode())
            self._names[mark] = self.name
            self._known = True
        return mark + secrets.token_hex(MARK // 2)

    async def name_of(self, trace_id: str | None) -> str | None:
        """Return in whose name a trace was begun; None, if not by such a process."""
        mark = (trace_id or "")[:MARK]
        if len(mark) < MARK:
            return None
        if mark not in self._names:
            for document in await (await self._store()).read(INSTANCES, mark):
                self._names[mark] = document.body.decode()
        return self._names.get(mark)


def _mark(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=MARK // 2).hexdigest()
