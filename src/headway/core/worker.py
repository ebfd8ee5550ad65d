"""A worker as a store records it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

PROTOCOL = 1  # Version of the messages from a worker to a store or server. Raise it when their meaning changes.
TASK = "task:"  # The prefix of a task's name in offers and needs.
EXECUTORS = ("async", "thread", "process")  # How workers run tasks. Runners write the index into shared memory.
ANY_TASK = "task:*"  # The offer of a worker that names no tasks: it runs every task that its capabilities allow.


class WorkerState(StrEnum):
    """Whether a worker claims jobs, only finishes those it has, or is gone."""

    ACTIVE = "active"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker: its offers, its slots, and when its leases end."""

    worker_id: str
    host: str
    pid: int
    slots: int
    reserved: int
    offers: tuple[str, ...]  # Capabilities, and task:NAME for each task that the worker knows, or ANY_TASK.
    version: str
    protocol: int = PROTOCOL
    state: WorkerState = WorkerState.ACTIVE
    started_at: int = 0
    heartbeat_at: int = 0
    lease_ends_at: int = 0
    running: int = 0


def capabilities_in(names: Iterable[str]) -> list[str]:
    """Return the capabilities among offers or needs."""
    return [name for name in names if not name.startswith(TASK)]


def tasks_in(names: Iterable[str]) -> list[str]:
    """Return the names of the tasks among offers or needs."""
    return [name.removeprefix(TASK) for name in names if name.startswith(TASK)]


def serves(needs: tuple[str, ...], offers: frozenset[str]) -> bool:
    """Return whether a worker with these offers may run jobs with these needs."""
    return not needs or all(need in offers or (need.startswith(TASK) and ANY_TASK in offers) for need in needs)
