"""The messages between a parent and its runner: JSON, one per line."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headway.core.policy.ladder import RunBudget

LEASES_ENDING = 4  # Exit code of a runner that ended itself before its leases did: its parent stood still.


class StartRunner(msgspec.Struct, tag="begin"):
    """The parent tells a new runner what to run."""

    app: str
    folder: str
    worker_id: str
    overrides: dict[str, Any]
    log_level: str
    remote: bool = False  # Work for the server that the settings name, if they name one.


class RunnerReady(msgspec.Struct, tag="up"):
    """The runner is about to claim; this is all its parent needs to know. ``server``: its jobs come from there."""

    worker_id: str
    store: str
    namespace: str
    slots: int
    reserved: int
    reserved_asked: int | None
    offers: list[str]
    host: str
    heartbeat: float
    dead_after: float
    confirm: float
    grace: float
    pid: int
    registered: float  # When its registration was sent, on the monotonic clock that all processes here share.
    transient_store: str | None = None
    history: str | None = None
    worker_http: str | None = None
    server: str | None = None
    token: str | None = None
    programs: bool = False  # Whether its app runs programs, which must not read what this worker knows.
    sessions: bool = False  # Whether its app has tasks that talk to a client.
    policy_version: int = 0
    policy: dict[str, Any] | None = None  # A server's, which the parent cannot look up.


class OffersChanged(msgspec.Struct, tag="offers"):
    """The runner has learned a task since it came up: all that it offers now."""

    offers: list[str]


class StartClaiming(msgspec.Struct, tag="go"):
    """The parent keeps the leases from here on: claim."""


class RunnerFailed(msgspec.Struct, tag="failed"):
    """The runner could not start; trying again would not help."""

    message: str
    traceback: str = ""
    setting: bool = False  # A setting is wrong, rather than the app.


class DrainRunner(msgspec.Struct, tag="drain"):
    """Take nothing more and leave."""

    grace: float


class StopJobs(msgspec.Struct, tag="stop"):
    """Stop these jobs; why is a ``slot_table.Stop``."""

    job_ids: list[str]
    why: int


class BudgetsChanged(msgspec.Struct, tag="granted"):
    """How long running jobs may run; with the names of the rungs they are on."""

    grants: list[RunBudget]


class PolicyChanged(msgspec.Struct, tag="governed"):
    """This version of the policy is in force; with what it says, if the runner cannot look it up."""

    version: int
    policy: dict[str, Any] | None = None


Message = (
    StartRunner
    | RunnerReady
    | OffersChanged
    | StartClaiming
    | RunnerFailed
    | DrainRunner
    | StopJobs
    | BudgetsChanged
    | PolicyChanged
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Channel:
    """One end of the pair of sockets between a parent and a runner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: Any) -> Channel:
        return cls(*await asyncio.open_connection(sock=connection, limit=1 << 24))

    def send(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(_encoder.encode(message) + b"\n")

    async def receive(self) -> Any:
        """Return the next message, or None once the other end is gone."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return _decoder.decode(line) if line else None

    async def close(self) -> None:
        self._writer.close()
