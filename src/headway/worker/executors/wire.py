"""Messages between a runner and the processes in which its jobs run: a length, then JSON. Nothing is pickled."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from headway.core.job import JobId, RetryRule
from headway.core.lease import Lease

HEADER = struct.Struct("!I")


class LoadApp(msgspec.Struct, tag="hello"):
    """The runner tells a new process which app to load."""

    app: str
    folder: str
    log: str | None = None  # How log lines look, and the least level.
    log_level: str = "info"


class AppLoaded(msgspec.Struct, tag="ready"):
    """The process has loaded the app."""


class RunJob(msgspec.Struct, tag="run"):
    """Run this job."""

    job_id: str
    task: str
    payload: bytes
    lane: str
    tenant: str | None
    trace_id: str | None
    epoch: int
    attempts: int
    limit_ms: int
    largest: int

    @classmethod
    def of(cls, lease: Lease, largest: int) -> RunJob:
        return cls(
            lease.job_id,
            lease.task,
            lease.payload,
            lease.lane,
            lease.tenant,
            lease.trace_id,
            lease.epoch,
            lease.attempts,
            lease.limit_ms,
            largest,
        )

    def lease(self) -> Lease:
        return Lease(
            JobId(self.job_id), 0, b"", self.task, self.payload, self.lane, self.tenant, self.trace_id, self.epoch,
            self.attempts, 0, 0, self.limit_ms, self.limit_ms, RetryRule(), 0,
        )  # fmt: skip


class JobProgress(msgspec.Struct, tag="progress"):
    """The job has come so far."""

    fraction: float
    note: str | None


class PartialResult(msgspec.Struct, tag="kept"):
    """What the job has got so far, encoded."""

    result: bytes | None = None
    result_error: str | None = None


class BudgetChange(msgspec.Struct, tag="shrunk"):
    """The job may take no longer than this, from its start."""

    limit_ms: int


class JobEnd(msgspec.Struct, tag="ended", kw_only=True):
    """The job has ended: with a result, or with an error, or by steering."""

    result: bytes | None = None
    result_error: str | None = None
    kind: str = "returned"  # returned | raised | retry_after | snooze | discard
    error: str = ""
    message: str = ""
    traceback: str = ""
    retriable: bool = True
    seconds: float = 0.0
    cancelled: bool = False
    spent: bool = False  # The job had left programs behind, which were killed: let no other job run in this process.


class LoadFailed(msgspec.Struct, tag="broken"):
    """The process could not load the app."""

    message: str


Message = LoadApp | AppLoaded | RunJob | JobProgress | PartialResult | BudgetChange | JobEnd | LoadFailed

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def pack(message: Message) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    return _decoder.decode(body)
