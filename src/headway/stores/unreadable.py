"""Reads damaged records, or those of another release, as far as possible, and describes the rest."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headway.core.errors import JobError
from headway.core.job import State
from headway.core.worker import WorkerState

T = TypeVar("T")

# What reading a value may raise if this release did not write it.
DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, msgspec.MsgspecError)


def read_or(default: T, read: Callable[[], T]) -> T:
    """Return the value that can be read, or a default."""
    try:
        return read()
    except DAMAGE:
        return default


def read_state(value: object) -> State:
    """Return a job's state. A state that this release does not know is shown as failed."""
    return read_or(State.FAILED, lambda: State(value))  # type: ignore[arg-type]


def read_worker_state(value: object) -> WorkerState:
    """Return a worker's state. A state that this release does not know counts as dead."""
    return read_or(WorkerState.DEAD, lambda: WorkerState(value))  # type: ignore[arg-type]


def unreadable_error(raw: object) -> JobError:
    """Return the error to show in place of one that cannot be read."""
    return JobError("UnreadableError", f"the stored error cannot be read: {str(raw)[:200]!r}")


def why_unreadable(problem: Exception) -> str:
    """Return the reason that a dead letter shows."""
    return f"its record in the store cannot be read ({type(problem).__name__}: {str(problem)[:200]})"
