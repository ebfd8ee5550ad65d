"""One job in a slot."""

from __future__ import annotations

import asyncio
from typing import Any

from headway.client.context import Context
from headway.client.task import Task
from headway.core.lease import Lease
from headway.worker.board import Stop


class Running:
    """A leased job while it runs: its context, and whether it has been told to stop."""

    __slots__ = ("below", "context", "deadline", "handle", "lease", "slot", "started", "stop", "task", "timer")

    context: Context

    def __init__(self, lease: Lease, task: Task[Any, Any, Any], slot: int, *, below: bool) -> None:
        self.lease = lease
        self.task = task
        self.slot = slot
        self.below = below  # It counts against the slots outside the reserve.
        self.stop = Stop.NO
        self.started = self.deadline = 0.0  # On the monotonic clock.
        self.handle: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
