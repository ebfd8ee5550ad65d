"""Memory that a runner shares with its parent: the runner's jobs, and when the runner must end itself.

The parent can read the table while the runner's loop is blocked or C code holds the GIL. So the parent renews leases
and notices overdue jobs without the runner's help. Writing a slot costs no system call.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from headway.core.job import JobId
from headway.core.worker import EXECUTORS

_HEADER = struct.Struct("=dd")  # When the runner's loop last turned, and when it last saw an empty queue.
_END = struct.Struct("=d")  # When the runner must end itself.
# Mark, executor, why it is being stopped, whether a timeout ends it, token, stop by, task, job. Ids of adopted Celery
# tasks have up to 255 characters of up to 4 bytes. The moment lies at a multiple of 8 bytes.
_SLOT = struct.Struct("=BBBB4x16sd64s1024s")
_STOP_BY = struct.calcsize("=BBBB4x16s")  # Where in a slot the moment begins by which the job must have stopped.
_FIRST, _STEP = _HEADER.size + _END.size, _SLOT.size  # Where the slots begin, and how far apart they are.
SLOTS_MAX = 10_000  # Slots of a table before the runner has sent their number; untouched pages cost nothing.
_FREE, _BUSY, _ENDED = 0, 1, 2


class Stop(IntEnum):
    """Why a running job should stop; false if it should not."""

    NO = 0
    TIMEOUT = 1
    CANCEL = 2
    LOST = 3
    DRAIN = 4


_GO_ON = int(Stop.NO)


@dataclass(frozen=True, slots=True)
class BusySlot:
    """One busy slot as the parent sees it. ``stop_by`` is on the machine's monotonic clock.

    ``gives_up``: a timeout ends the job, and no retry follows.
    """

    job_id: JobId
    token: bytes
    task: str
    executor: str
    stop: Stop
    stop_by: float
    gives_up: bool = False


class SlotTable:
    """Slots in shared memory, which a runner writes and its parent reads. The parent writes only ``end_by``."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        self._memory = mmap.mmap(descriptor, _size(slots))

    @classmethod
    def create(cls, slots: int) -> SlotTable:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("headway-board")
        else:
            descriptor, path = tempfile.mkstemp(prefix="headway-board-")
            os.unlink(path)
        os.ftruncate(descriptor, _size(slots))
        return cls(descriptor, slots)

    def hold(
        self, slot: int, job_id: JobId, token: bytes, task: str, executor: str, stop_by: float, gives_up: bool = False
    ) -> None:
        """Write a job into a slot. The busy mark is written last, so a reader never sees half a slot."""
        offset = _FIRST + slot * _STEP
        code, name = _kind(task, executor)
        _SLOT.pack_into(self._memory, offset, _FREE, code, _GO_ON, gives_up, token, stop_by, name, job_id.encode())
        self._memory[offset] = _BUSY

    def stopping(self, slot: int, stop: Stop, stop_by: float) -> None:
        """Record that a job was asked to stop, and when the parent kills the runner if the job has not stopped."""
        offset = _FIRST + slot * _STEP
        struct.pack_into("=d", self._memory, offset + _STOP_BY, stop_by)
        self._memory[offset + 2] = stop

    def until(self, slot: int, stop_by: float) -> None:
        """Record an earlier deadline of a job."""
        struct.pack_into("=d", self._memory, _FIRST + slot * _STEP + _STOP_BY, stop_by)

    def ended(self, slot: int) -> None:
        """Record that a job has ended. Its lease is renewed until the store has its report."""
        self._memory[_FIRST + slot * _STEP] = _ENDED

    def free(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._memory[_FIRST + slot * _STEP] = _FREE

    def beat(self, idle_since: float = 0.0) -> None:
        """Record that the runner's loop turns. ``idle_since``: when it last saw an empty queue, 0 if jobs wait."""
        _HEADER.pack_into(self._memory, 0, time.monotonic(), idle_since)

    def pulse(self) -> float:
        """Return when the runner's loop last turned, on the monotonic clock; 0 before its start."""
        return float(_HEADER.unpack_from(self._memory, 0)[0])

    def idle_since(self) -> float:
        """Return when the runner last saw an empty queue, on the monotonic clock; 0 if jobs wait."""
        return float(_HEADER.unpack_from(self._memory, 0)[1])

    def end_by(self, moment: float) -> None:
        """Set when the runner must end itself, on the monotonic clock. The parent calls it after each renewal."""
        _END.pack_into(self._memory, _HEADER.size, moment)

    def runner_ends(self) -> float:
        """Return when the runner must end itself, on the monotonic clock; 0 before the parent renews leases."""
        return float(_END.unpack_from(self._memory, _HEADER.size)[0])

    def held(self) -> list[BusySlot]:
        """Return the slots whose jobs run."""
        return self._read(_BUSY)

    def unreported(self) -> list[BusySlot]:
        """Return the slots whose jobs have ended, but whose reports the store has not accepted."""
        return self._read(_ENDED)

    def leases(self) -> list[tuple[JobId, bytes]]:
        """Return the leases in the table, also of ended jobs. Transient jobs have none."""
        return [(held.job_id, held.token) for held in self._read(_BUSY, _ENDED) if held.token != bytes(16)]

    def _read(self, *marks: int) -> list[BusySlot]:
        found = []
        for slot in range(self.slots):
            offset = _FIRST + slot * _STEP
            if self._memory[offset] not in marks:
                continue
            _, executor, stop, gives_up, token, stop_by, task, job = _SLOT.unpack_from(self._memory, offset)
            name, job_id = task.rstrip(b"\0").decode(errors="replace"), JobId(job.rstrip(b"\0").decode())
            found.append(BusySlot(job_id, token, name, EXECUTORS[executor], Stop(stop), stop_by, bool(gives_up)))
        return found

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)


@lru_cache(maxsize=1_024)
def _kind(task: str, executor: str) -> tuple[int, bytes]:
    return EXECUTORS.index(executor), task.encode()[:64]


def _size(slots: int) -> int:
    return _FIRST + slots * _STEP
