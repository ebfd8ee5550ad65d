"""Reading what was damaged, or written by another release: as far as it goes, with a word on the rest."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headway.core.errors import JobError
from headway.core.job import State
from headway.core.worker import WorkerState

T = TypeVar("T")

# What reading a value may raise that is not what this release writes.
DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, msgspec.MsgspecError)


def read_or(default: T, read: Callable[[], T]) -> T:
    """Return what can be read, or a default."""
    try:
        return read()
    except DAMAGE:
        return default


def read_state(value: object) -> State:
    """Return a job's state. One that this release does not know is shown as failed."""
    return read_or(State.FAILED, lambda: State(value))  # type: ignore[arg-type]


def read_worker_state(value: object) -> WorkerState:
    """Return a worker's state. One that this release does not know counts as dead."""
    return read_or(WorkerState.DEAD, lambda: WorkerState(value))  # type: ignore[arg-type]


def unreadable_error(raw: object) -> JobError:
    """Return what to show in place of an error that cannot be read."""
    return JobError("UnreadableError", f"the stored error cannot be read: {str(raw)[:200]!r}")


def why_unreadable(problem: Exception) -> str:
    """Return the reason that a dead letter shows."""
    return f"its record in the store cannot be read ({type(problem).__name__}: {str(problem)[:200]})"
