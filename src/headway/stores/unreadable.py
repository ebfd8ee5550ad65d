"""Reads damaged records, or those of another release, as far as possible, and describes the rest."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from headway.core.errors import JobError
from headway.core.job import State
from headway.core.log_event import LogEvent
from headway.core.worker import WorkerState

T = TypeVar("T")

log = logging.getLogger("headway.stores")

# The damaged documents that this process has logged: kind, name, hash of the body. A set's add is atomic.
_logged: set[tuple[str, str, int]] = set()

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


class DocumentReader(Generic[T]):
    """Decodes documents of one kind. A damaged document keeps its last good value, and is logged once.

    ``damaged`` has the names of documents whose last read failed.
    """

    def __init__(self, kind: str, decode: Callable[[bytes], T]) -> None:
        self._kind = kind
        self._decode = decode
        self._good: dict[str, T] = {}
        self.damaged: set[str] = set()

    def read(self, name: str, body: bytes) -> T | None:
        """Return the value of a document, else its last good value, else None."""
        try:
            value = self._good[name] = self._decode(body)
        except DAMAGE as problem:
            self.damaged.add(name)
            self._log(name, body, str(problem))
            return self._good.get(name)
        self.damaged.discard(name)
        return value

    def keep(self, name: str, value: T) -> None:
        """Make this the last good value of a document."""
        self._good[name] = value

    def _log(self, name: str, body: bytes, error: str) -> None:
        damage = (self._kind, name, hash(body))
        if damage not in _logged:
            _logged.add(damage)
            kept = name in self._good
            log.error(LogEvent("document.unreadable", kind=self._kind, name=name, kept=kept, error=error))
