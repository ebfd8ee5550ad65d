"""Messages between a runner and the processes in which its jobs run: a length, then JSON. Nothing is pickled."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from headway.client.members import MemberPage
from headway.core.job import State
from headway.core.lease import Lease

HEADER = struct.Struct("!I")


class LoadApp(msgspec.Struct, tag="hello"):
    """The runner asks a new process to load an app."""

    app: str
    folder: str
    log: str | None = None  # The form of log lines: console, json, or None to choose.
    log_level: str = "info"
    measure: bool = False  # Send the memory of the process with the end of each job.


class AppLoaded(msgspec.Struct, tag="ready"):
    """The process has loaded the app."""


class RunJob(msgspec.Struct, tag="run"):
    """Run this job. Its lease has no token, because only the runner reports."""

    lease: Lease
    largest: int


class JobProgress(msgspec.Struct, tag="progress"):
    """The progress of the running job."""

    fraction: float
    note: str | None


class PartialResult(msgspec.Struct, tag="kept"):
    """The partial result of the running job, encoded."""

    result: bytes | None = None
    result_error: str | None = None


class BudgetChange(msgspec.Struct, tag="shrunk"):
    """The new time limit of the running job, from its start."""

    limit_ms: int


class ReadSteps(msgspec.Struct, tag="read_steps"):
    """The running job asks for the steps that it has kept."""


class KeepStep(msgspec.Struct, tag="keep_step"):
    """The running job keeps a step."""

    key: str
    value: bytes


class StepsReply(msgspec.Struct, tag="steps"):
    """The answer to ``ReadSteps`` and ``KeepStep``. ``error``: the store could not be reached, or refused the step."""

    steps: dict[str, bytes] = {}
    held: bool = True  # The lease of the job has not ended.
    error: str | None = None
    refused: bool = False  # The step exceeds a limit.


class ReadMembers(msgspec.Struct, tag="read_members"):
    """The running job asks for results of a batch."""

    batch_id: str
    states: list[State]
    cursor: str | None


class MembersReply(msgspec.Struct, tag="members"):
    """The answer to ``ReadMembers``. Without a ``page`` and an ``error`` the process reads from its own store."""

    page: MemberPage | None = None
    error: str | None = None


class JobEnd(msgspec.Struct, tag="ended", kw_only=True):
    """The job has ended: it returned, raised, asked for a later run, or was cancelled."""

    result: bytes | None = None
    result_error: str | None = None
    kind: str = "returned"  # returned | raised | retry_after | snooze | discard
    error: str = ""
    message: str = ""
    traceback: str = ""
    retriable: bool = True
    seconds: float = 0.0
    cancelled: bool = False
    memory: int = 0  # Bytes that the process occupies; 0 if it was not asked to measure them.
    spent: bool = False  # The job left programs behind, which were killed. No other job may run in this process.


class LoadFailed(msgspec.Struct, tag="broken"):
    """The process could not load the app."""

    message: str


ProcessMessage = (
    LoadApp | AppLoaded | RunJob | JobProgress | PartialResult | BudgetChange | ReadSteps | KeepStep | StepsReply
    | ReadMembers | MembersReply | JobEnd | LoadFailed
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[ProcessMessage] = msgspec.json.Decoder(ProcessMessage)


def pack(message: ProcessMessage) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    return _decoder.decode(body)
