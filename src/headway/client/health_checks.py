"""Checks of a store and its settings: is everything as it should be. Commands and servers show the results."""

from __future__ import annotations

import shutil
import stat
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.client.settings import Settings
from headway.core.errors import HeadwayError
from headway.core.policy.units import plural
from headway.core.policy.why import length
from headway.core.worker import WorkerState
from headway.policy_store.damage import find_damaged
from headway.stores.base import Stats, Store
from headway.stores.open import mask, open_archive
from headway.stores.transport import Transport

SQLITE_OLDEST = (3, 51, 3)  # Earlier ones may damage a file when its log is reset.
DISK_LEAST = 64 << 20
DISK_LITTLE = 1 << 30
REAPS_IN_HEARTBEAT = 3  # A worker reaps this often in each heartbeat…
REAP_JITTER = 1.3  # …at intervals up to this much longer.


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``advice`` says what to do unless all is well."""

    name: str
    status: Literal["ok", "warning", "fail"]
    detail: str
    advice: str | None = None


async def examine(
    store: Store, settings: Settings, facts: dict[str, str], *, writing: bool = True
) -> AsyncIterator[Check]:
    """Check one thing after another in an open store. ``facts`` gets what the store says of itself.

    ``writing``: write a document and remove it again.
    """
    try:
        facts.update(await store.describe())
        yield Check("store", "ok", f"opened {mask(settings.store)}")
        if writing:
            yield await _check_writing(store)
        if "transient jobs" in facts:
            yield _check_transient(facts["transient jobs"])
        if "sqlite" in facts:
            yield _check_sqlite(facts["sqlite"])
        if "warning" in facts:
            yield Check("server", "fail", facts["warning"], "accepted jobs may be lost until this is mended")
        if "outdated" in facts:
            yield Check(
                "server release", "warning", facts["outdated"], f"upgrade it to {facts['safe release']} or newer"
            )
        if "transport" in facts:
            yield check_transport(facts["transport"])
        if settings.history is not None:
            way = open_archive(settings.history, store.namespace).transport
            yield check_transport(way.value, name="history transport")
        if "failover" in facts:
            yield _check_failover(facts["failover"])
        path = store.abilities.path
        if path is not None:
            yield _check_disk(path)
            yield _check_modes(path)
        yield await check_documents(store)
        stats = await store.stats()
        yield _check_workers(stats)
        yield _check_waiting(stats)
    except HeadwayError as problem:
        yield Check("store", "fail", str(problem), "see to the store, then ask again")


def recovery(settings: Settings) -> dict[str, float]:
    """Return how soon jobs are back in the queue, in seconds, by the settings here."""
    return {
        "runner_crashed_seconds": 1.0,
        "host_lost_seconds": round(settings.dead_after + settings.heartbeat / REAPS_IN_HEARTBEAT * REAP_JITTER, 1),
    }


async def _check_writing(store: Store) -> Check:
    name = uuid.uuid4().hex
    try:
        await store.write("doctor", name, b"probe")
        await store.write("doctor", name, None)
    except HeadwayError as problem:
        return Check("writing", "fail", str(problem), "without writing no job can be submitted or finished")
    return Check("writing", "ok", "a document was written and removed")


async def check_documents(store: Store) -> Check:
    """Check that the policy, its rules, the tasks and the crons can be read."""
    damaged = await find_damaged(store)
    if not damaged:
        return Check("documents", "ok", "the policy, its rules, the tasks and the crons can be read")
    detail = "; ".join(f"{kind} {name}: {error}" for kind, name, error in damaged)
    advice = "apply the policy again, pause again what was paused, and restart the workers that have these tasks"
    return Check("documents", "fail", f"cannot be read: {detail}", advice)


def _check_transient(detail: str) -> Check:
    if detail.startswith("in "):
        return Check("transient store", "ok", f"transient jobs wait {detail}")
    advice = "see to it, or name another with HEADWAY_TRANSIENT_STORE; durable jobs go on meanwhile"
    return Check("transient store", "fail", f"transient jobs are {detail}", advice)


def check_transport(detail: str, *, name: str = "transport") -> Check:
    """Check that no other machine can read what is sent to a store."""
    if not Transport(detail).exposed:
        return Check(name, "ok", detail)
    advice = "write rediss:// for Redis; for PostgreSQL add sslmode=verify-full to the address"
    return Check(name, "warning", f"anyone on the network could read along: {detail}", advice)


def _check_failover(detail: str) -> Check:
    if detail.startswith("loses"):
        return Check("failover", "ok", detail)
    advice = "set min-replicas-to-write 1 and min-replicas-max-lag 2 on the servers, and add ?replicas=1 to the address"
    return Check("failover", "warning", detail, advice)


def _check_sqlite(version: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    oldest = ".".join(map(str, SQLITE_OLDEST))
    if numbers < SQLITE_OLDEST:
        advice = f"install apsw {oldest} or newer: earlier versions may damage the file"
        return Check("sqlite", "fail", f"version {version}", advice)
    return Check("sqlite", "ok", f"version {version}, at least {oldest}")


def _check_disk(path: Path) -> Check:
    free = shutil.disk_usage(path.absolute().parent).free
    detail = f"{free / (1 << 30):,.1f} GiB free beside {path.name}"
    if free < DISK_LEAST:
        return Check("disk", "fail", detail, "free some room: on a full disk submits are refused")
    if free < DISK_LITTLE:
        return Check("disk", "warning", detail, "free some room before it runs out")
    return Check("disk", "ok", detail)


def _check_modes(path: Path) -> Check:
    modes = {
        file: stat.S_IMODE(file.stat().st_mode)
        for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm")))
        if file.exists()
    }
    detail = ", ".join(f"{file.name} {mode:04o}" for file, mode in modes.items())
    advice = f"jobs' arguments may hold secrets: chmod 600 {' '.join(str(file) for file in modes)}"
    if any(mode & 0o007 for mode in modes.values()):
        return Check("file modes", "fail", f"{detail}: every user of this machine has access", advice)
    if any(mode & 0o070 for mode in modes.values()):
        return Check(
            "file modes", "warning", f"{detail}: the file's group has access", f"unless that is wanted, {advice}"
        )
    return Check("file modes", "ok", f"{detail}: only the owner has access")


def _check_workers(stats: Stats) -> Check:
    dead = [worker for worker in stats.workers if worker.state is WorkerState.DEAD]
    alive = len(stats.workers) - len(dead)
    detail = f"{alive} alive, {len(dead)} dead"
    stranded = sum(worker.running for worker in dead)
    if stranded and not alive:
        advice = "start a worker: it returns them to the queue"
        return Check("workers", "fail", f"{detail}, the dead hold {plural(stranded, 'job')}", advice)
    if not alive:
        return Check("workers", "warning", detail, "start one with `headway worker module:app`, or jobs will wait")
    return Check("workers", "ok", detail)


def _check_waiting(stats: Stats) -> Check:
    waiting = sum(lane.waiting for lane in stats.lanes.values())
    oldest = [lane.oldest_at for lane in stats.lanes.values() if lane.oldest_at is not None]
    alive = any(worker.state is WorkerState.ACTIVE for worker in stats.workers)
    detail = "no job waits"
    if waiting:
        since = f", the oldest for {length((stats.now_at - min(oldest)) / 1_000)}" if oldest else ""
        detail = f"{plural(waiting, 'job')} waiting{since}"
    if waiting and not alive:
        return Check("waiting", "fail", f"{detail}, and no worker takes jobs", "start one: `headway worker module:app`")
    return Check("waiting", "ok", detail)
