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

    __slots__ = ("below", "context", "handle", "lease", "slot", "started", "stop", "task", "timer")

    def __init__(self, lease: Lease, task: Task[Any, Any, Any], context: Context, slot: int, *, below: bool) -> None:
        self.lease = lease
        self.task = task
        self.context = context
        self.slot = slot
        self.below = below  # It counts against the slots outside the reserve.
        self.stop = Stop.NO
        self.started = 0.0
        self.handle: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
