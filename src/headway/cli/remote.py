"""A server in place of a store: what commands ask of one goes over HTTP."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from headway.core import errors
from headway.core.diagnostics import JobDiagnostics
from headway.core.errors import ConfigError, HeadwayError, ServerRefused, StoreTooNew
from headway.core.job import JobId, JobRecord, State
from headway.core.snapshot import Snapshot
from headway.protocol.http_client import HttpClient
from headway.server.operator_rpc import (
    IDS_MAX,
    PAGE_MAX,
    Cancel,
    DrainCommand,
    Find,
    Get,
    GetStanding,
    GetStats,
    Greet,
    Greeting,
    Jobs,
    Purge,
    Question,
    Read,
    RetryCommand,
    Write,
    path_of,
)
from headway.stores.base import FORMAT, Abilities, Document, JobQuery, Stats, Store
from headway.version import __version__

T = TypeVar("T")
TASKS = "/api/v1/tasks"

# What a server says of a request is told like what a store says of it.
_SAME: dict[str, type[HeadwayError]] = {
    error.code: error
    for error in (
        errors.BadArguments,
        errors.ConfigError,
        errors.IdempotencyConflict,
        errors.IllegalMove,
        errors.JobNotFound,
        errors.NotStored,
        errors.PayloadError,
        errors.PayloadTooLarge,
        errors.PolicyError,
        errors.UnknownOption,
        errors.UnknownTask,
    )
}


class RemoteSubmit(msgspec.Struct, frozen=True):
    """A job that a server has kept. ``deduplicated``: an earlier submit made it; None if the server does not say."""

    task_id: str
    status: str
    deduplicated: bool | None = None


def remote_store(address: str, token: str | None) -> Store:
    """Make what stands for the store of a server: as much of one as commands need."""
    return cast("Store", RemoteStore(_caller(address, token)))


async def submit_task(address: str, token: str | None, body: dict[str, Any]) -> RemoteSubmit:
    """Submit a task over the REST interface."""
    caller = _caller(address, token)
    try:
        return await _ask(caller, TASKS, body, RemoteSubmit)
    finally:
        await caller.close()


class RemoteStore:
    """The verbs of a store that commands use. The server needs a token for all tenants: read, submit or admin."""

    abilities = Abilities(durable=True, shared=True, any_loop=False, remote=True)
    namespace = ""  # The server knows.

    def __init__(self, caller: HttpClient) -> None:
        self._caller = caller

    async def open(self) -> None:
        """See who is there. Raises ``StoreTooNew`` if it speaks of a store that this Headway cannot read."""
        try:
            there = await self._ask(Greet(), Greeting)
            if there.format != FORMAT:
                raise StoreTooNew(
                    f"{self._caller.address} is Headway {there.version} and this is {__version__}; use the same release"
                )
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._caller.close()

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        found: list[JobRecord | None] = []
        while len(found) < len(job_ids):
            part = list(job_ids[len(found) : len(found) + PAGE_MAX])
            found += (await self._ask(Get(part), Jobs)).jobs
        return found

    async def find(self, query: JobQuery) -> list[JobRecord]:
        found: list[JobRecord] = []
        while (wanted := min(PAGE_MAX, query.limit - len(found))) > 0:
            before = found[-1].seq if found else query.before
            page = await self._ask(Find(query._replace(before=before, limit=wanted)), Jobs)
            found += [job for job in page.jobs if job is not None]
            if len(page.jobs) < wanted and not page.more:
                break
        return found

    async def snapshot(self) -> Snapshot:
        """Return the store's time; what waits is not asked for."""
        return Snapshot((await self._ask(Greet(), Greeting)).now_at)

    async def stats(self) -> Stats:
        return await self._ask(GetStats(), Stats)

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        return await self._ask(GetStanding(job_id), cast("type[JobDiagnostics | None]", JobDiagnostics | None))

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        parts = _parts(job_ids, IDS_MAX)
        return [state for part in parts for state in await self._ask(Cancel(part, reason), list[State | None])]

    async def retry(self, job_ids: Sequence[JobId]) -> list[State | None]:
        parts = _parts(job_ids, IDS_MAX)
        return [state for part in parts for state in await self._ask(RetryCommand(part), list[State | None])]

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        if job_ids is None:
            return await self._ask(Purge(list(states), None, min(limit, IDS_MAX)), int)
        parts = _parts(job_ids, IDS_MAX)
        return sum([await self._ask(Purge(list(states), part, len(part)), int) for part in parts])

    async def drain(self, worker_id: str) -> bool:
        return await self._ask(DrainCommand(worker_id), bool)

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        return await self._ask(Read(kind, name), list[Document])

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        return await self._ask(Write(kind, name, body, if_version), cast("type[int | None]", int | None))

    def subscribe(self, name: str) -> _NoSubscription:
        return _NoSubscription()

    def __getattr__(self, name: str) -> Any:
        raise ConfigError(f"this is not done over HTTP ({name}); use --store")

    async def _ask(self, question: Question, kind: type[T]) -> T:
        return await _ask(self._caller, path_of(question), question, kind)


class _NoSubscription:
    """A subscription that reports nothing: watchers look each second anyway."""

    call = None

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        await asyncio.sleep(timeout)
        return None

    def close(self) -> None:
        pass


def _caller(address: str, token: str | None) -> HttpClient:
    caller = HttpClient(address, token)
    if token is not None and not caller.address.is_private:
        warnings.warn(f"the token goes to {caller.address} in plain text; use https", stacklevel=3)
    return caller


async def _ask(caller: HttpClient, path: str, question: Any, kind: type[T]) -> T:
    try:
        return await caller.ask(path, question, kind)
    except ServerRefused as refusal:
        same = _SAME.get(refusal.code)
        if same is None:
            raise
        raise same(str(refusal), **refusal.facts) from refusal


def _parts(job_ids: Sequence[JobId], most: int) -> Iterator[list[JobId]]:
    for start in range(0, len(job_ids), most):
        yield list(job_ids[start : start + most])
