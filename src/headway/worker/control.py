"""The messages between a parent and its runner: JSON, one per line."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headway.core.policy.ladder import RunBudget
from headway.core.worker import WorkerInfo

LEASES_ENDING = 4  # Exit code of a runner that ended itself because its parent had stopped renewing the leases.


class StartRunner(msgspec.Struct, tag="begin"):
    """The parent asks a new runner to load an app."""

    app: str
    folder: str
    worker_id: str
    overrides: dict[str, Any]
    log_level: str
    remote: bool = False  # Work for the server that the settings name, if they name one.
    memory_after: float = 0.0  # Seconds before the runner may ask to be replaced for its memory.


class RunnerReady(msgspec.Struct, tag="up"):
    """The runner is ready to claim, and sends what its parent needs. ``server``: the server that it gets jobs from."""

    worker: WorkerInfo
    store: str
    namespace: str
    reserved_asked: int | None
    heartbeat: float
    dead_after: float
    confirm: float
    grace: float
    registered: float  # When the registration was sent, on the monotonic clock that all processes share.
    transient_store: str | None = None
    history: str | None = None
    worker_http: str | None = None
    server: str | None = None
    token: str | None = None
    programs: bool = False  # Whether the app runs programs, which must not read the worker's secrets.
    sessions: bool = False  # Whether the app has tasks that talk to a client.
    policy_version: int = 0
    policy: dict[str, Any] | None = None  # The server's policy, which the parent cannot read from a store.


class OffersChanged(msgspec.Struct, tag="offers"):
    """The runner has learned a task. ``offers`` holds all its current offers."""

    offers: list[str]


class RecyclingDue(msgspec.Struct, tag="recycle"):
    """The runner has reached a bound, or soon will, and asks for a runner that replaces it."""

    reason: str  # "jobs" or "memory"
    jobs: int
    memory: int  # Bytes.


class FinishRunner(msgspec.Struct, tag="finish"):
    """The runner must claim no more jobs, let its jobs end, and leave."""


class ClaimingStopped(msgspec.Struct, tag="quiet"):
    """The runner will start no more jobs. All that it runs are in its slot table."""


class SlotsTaken(msgspec.Struct, tag="taken"):
    """The runner must leave this many slots free, because jobs of the runners it replaced still run."""

    slots: int


class StartClaiming(msgspec.Struct, tag="go"):
    """The parent renews the leases from now on, so the runner may claim."""


class RunnerFailed(msgspec.Struct, tag="failed"):
    """The runner could not start; trying again would not help."""

    message: str
    traceback: str = ""
    setting: bool = False  # A setting is wrong, rather than the app.


class DrainRunner(msgspec.Struct, tag="drain"):
    """The runner must stop claiming and leave."""

    grace: float


class StopJobs(msgspec.Struct, tag="stop"):
    """The runner must stop these jobs. ``why`` is a ``slot_table.Stop``."""

    job_ids: list[str]
    why: int


class BudgetsChanged(msgspec.Struct, tag="granted"):
    """The budgets of running jobs, with the names of their rungs."""

    grants: list[RunBudget]


class PolicyChanged(msgspec.Struct, tag="governed"):
    """This policy version is in force. ``policy`` holds its content if the runner cannot read it from a store."""

    version: int
    policy: dict[str, Any] | None = None


RunnerMessage = (
    StartRunner
    | RunnerReady
    | OffersChanged
    | RecyclingDue
    | FinishRunner
    | ClaimingStopped
    | SlotsTaken
    | StartClaiming
    | RunnerFailed
    | DrainRunner
    | StopJobs
    | BudgetsChanged
    | PolicyChanged
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[RunnerMessage] = msgspec.json.Decoder(RunnerMessage)


class Channel:
    """One end of the pair of sockets between a parent and a runner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connection: Any) -> Channel:
        return cls(*await asyncio.open_connection(sock=connection, limit=1 << 24))

    def send(self, message: RunnerMessage) -> None:
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
