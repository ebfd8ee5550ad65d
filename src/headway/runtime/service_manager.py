"""Reports of this process to systemd (sd_notify): it is ready, it lives, it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Self

from headway.core.log_event import LogEvent
from headway.runtime.bounded_wait import wait_until_set

log = logging.getLogger("headway.systemd")


class ServiceManager:
    """Sends the state of this process to the socket that systemd names, or nothing if there is none.

    The process is ready when all expected parts have started. ``watchdog`` is the number of seconds without a sign of
    life after which systemd kills the process, or None. The signs come from the event loop: a blocked loop sends none.
    """

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = None if address is None else f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog = watchdog
        self._awaited: set[str] = set()
        self._is_ready = False
        self._failed = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Read what systemd says, and remove it: the processes of jobs must not report for this one."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_pid = environment.pop("WATCHDOG_PID", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        watched = microseconds.isdecimal() and watchdog_pid in ("", str(os.getpid()))
        known = address.startswith(("/", "@"))  # systemd uses other kinds of sockets only for virtual machines.
        return cls(address if known else None, int(microseconds) / 1_000_000 if watched else None)

    def expect(self, part: str) -> None:
        """Report as ready only after this part has started too."""
        self._awaited.add(part)

    def started(self, part: str) -> None:
        """Record that a part has started. Report as ready when it is the last one."""
        self._awaited.discard(part)
        if not self._awaited and not self._is_ready:
            self._is_ready = True
            self._send("READY=1")

    async def report(self, stopping: asyncio.Event) -> None:
        """Send signs of life until cancelled, and report once that the process stops."""
        if self._address is None:
            return
        pause = None if self._watchdog is None else self._watchdog / 2
        while not stopping.is_set():
            if pause is None:
                await stopping.wait()
            else:
                self._send("WATCHDOG=1")
                await wait_until_set(stopping, pause)
        self._send("STOPPING=1")
        while pause is not None:
            await asyncio.sleep(pause)
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto(state.encode(), self._address)
        except OSError as problem:
            if not self._failed:
                self._failed = True
                log.warning(LogEvent("systemd.unreachable", state=state, error=str(problem)))
