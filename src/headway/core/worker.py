"""A worker as the store knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PROTOCOL = 1  # What a worker says to a store or server; raised when its meaning changes.
TASK = "task:"  # What stands before a task's name in offers and needs.
ANY_TASK = "task:*"  # The offer of a worker that names no tasks: it takes whatever its capabilities allow.


class WorkerState(StrEnum):
    """Whether a worker takes jobs, finishes what it has, or is gone."""

    ACTIVE = "active"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One runner: what it offers, how much room it has, and how long its leases last."""

    worker_id: str
    host: str
    pid: int
    slots: int
    reserved: int
    offers: tuple[str, ...]  # Capabilities, and task:NAME for each task it knows, or ANY_TASK.
    version: str
    protocol: int = PROTOCOL
    state: WorkerState = WorkerState.ACTIVE
    started_at: int = 0
    heartbeat_at: int = 0
    lease_ends_at: int = 0
    running: int = 0


def serves(needs: tuple[str, ...], offers: frozenset[str]) -> bool:
    """Return whether a worker with these offers may run jobs with these needs."""
    return all(need in offers or (need.startswith(TASK) and ANY_TASK in offers) for need in needs)
