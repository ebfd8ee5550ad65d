"""Live views: one reader of the store for all open dashboards, and one message a second with what has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import Any

from headway.core.errors import HeadwayError
from headway.core.log_event import LogEvent
from headway.server.routing import encode

log = logging.getLogger("headway.server")

EVERY = 1.0  # Seconds between two messages.
KEEPALIVE = 15.0  # Seconds between keep-alives, less than the usual idle timeouts of proxies.

ViewReader = Callable[[], Awaitable[Mapping[str, Any]]]


class LiveUpdates:
    """Reads the views that some reader watches, once a second, and keeps for each member since when it is as it is.

    A reader gets the members that have changed since the last message it took. A slow reader skips messages, so
    nothing is buffered for it.
    """

    def __init__(self, views: Mapping[str, ViewReader]) -> None:
        self._views = views
        self._watched: dict[str, int] = {}  # By view: how many readers watch it.
        self._members: dict[str, dict[str, tuple[int, bytes]]] = {}  # By view and member: the round, and its JSON.
        self._round = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._messages: dict[tuple[tuple[str, ...], int], bytes] = {}  # The messages of this round.

    @property
    def readers(self) -> int:
        """Return how many readers watch any view, each counted once for each view."""
        return sum(self._watched.values())

    @property
    def names(self) -> Collection[str]:
        return self._views.keys()

    async def follow(self, names: tuple[str, ...], ends: Collection[asyncio.Future[None]]) -> AsyncIterator[bytes]:
        """Yield messages as JSON, or nothing as a keep-alive, until one of ``ends`` is done."""
        with self._watch(names):
            seen, sent = 0, time.monotonic()
            while True:
                message = self._message(names, seen)
                if message:
                    seen, sent = self._round, time.monotonic()
                    yield message
                elif time.monotonic() - sent >= KEEPALIVE:
                    sent = time.monotonic()
                    yield b""
                changed = asyncio.ensure_future(self._changed.wait())
                waits: list[asyncio.Future[Any]] = [changed, *ends]
                try:
                    await asyncio.wait(waits, timeout=KEEPALIVE, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                if any(end.done() for end in ends):
                    return

    @contextlib.contextmanager
    def _watch(self, names: tuple[str, ...]) -> Any:
        for name in names:
            self._watched[name] = self._watched.get(name, 0) + 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            for name in names:
                self._watched[name] -= 1
                if not self._watched[name]:
                    del self._watched[name]
                    self._members.pop(name, None)  # The next reader must not get old values.
            if not self._watched:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        """Read the watched views once a second. A failed read leaves the views as they are."""
        while True:
            begun = time.monotonic()
            for name in list(self._watched):
                try:
                    self._update(name, await self._views[name]())
                except HeadwayError as problem:
                    log.info(LogEvent("live.read_failed", view=name, error=str(problem)))
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            await asyncio.sleep(max(0.05, EVERY - (time.monotonic() - begun)))

    def _update(self, name: str, values: Mapping[str, Any]) -> None:
        known = self._members.setdefault(name, {})
        new = {member: encode(value) for member, value in values.items()}
        if any(member not in known or known[member][1] != body for member, body in new.items() if member != "at"):
            self._round += 1
            self._messages.clear()
            for member, body in new.items():
                if member not in known or known[member][1] != body:
                    known[member] = (self._round, body)

    def _message(self, names: tuple[str, ...], seen: int) -> bytes:
        """Return the members of these views that have changed after a round, as JSON, or nothing."""
        message = self._messages.get((names, seen))
        if message is None:
            parts = []
            for name in names:
                members = [
                    b"%s:%s" % (encode(member), body)
                    for member, (since, body) in self._members.get(name, {}).items()
                    if since > seen
                ]
                if members:
                    parts.append(b"%s:{%s}" % (encode(name), b",".join(members)))
            message = self._messages[names, seen] = b"{%s}" % b",".join(parts) if parts else b""
        return message
