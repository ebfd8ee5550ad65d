"""One job in a slot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from headway.client.context import Context
from headway.client.task import Task
from headway.core.lease import Lease
from headway.worker.slot_table import Stop

_NO = Stop.NO  # A constant, because Python 3.11 is slow to look up an enum member.


@dataclass(slots=True, eq=False)
class ActiveJob:
    """A leased job while it runs: its context, and whether it was asked to stop.

    ``started`` and ``deadline`` are on the monotonic clock. ``below``: it counts against the slots outside the reserve.
    """

    lease: Lease
    task: Task[Any, Any, Any]
    slot: int
    context: Context
    started: float
    deadline: float
    below: bool
    stop: Stop = _NO
    handle: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
