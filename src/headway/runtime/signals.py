"""Signals: the first asks for a drain, the second for an immediate end."""

from __future__ import annotations

import asyncio
import signal


class Signals:
    """Turns SIGTERM and SIGINT into two events."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.received)

    def remove(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def received(self) -> None:
        if self.drain.is_set():
            self.now.set()
        self.drain.set()
