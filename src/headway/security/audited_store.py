"""A store for operators: every verb that changes something for other users is recorded in the audit.

The command line, the HTTP interface and Python programs use it, each with its own ``who``. A call that changes nothing
is not recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from headway.core.errors import PolicyError
from headway.core.job import JobId, State
from headway.core.policy.enforced import PauseSet
from headway.core.worker import WorkerState
from headway.core.workflow import BatchId, BatchRecord
from headway.policy_store.catalogue import CRON_PAUSES, CRONS, TASKS
from headway.policy_store.rule_documents import PAUSES
from headway.policy_store.versions import CURRENT, pointed_version, read_applied
from headway.security.audit import Group, record
from headway.stores.base import POLICIES, RULES, Document, Store
from headway.stores.paging import get_in_steps
from headway.stores.rule_codec import RuleReader

NAMED = 20  # Jobs that an entry names. Of further jobs it records the number.


def audited(store: Store, who: str | None, *, group: Group = "operators") -> Store:
    """Return the store with its operator verbs recorded as done by ``who``. With None, return the store itself."""
    return store if who is None else cast("Store", AuditedStore(store, who, group))


class _JobBefore(NamedTuple):
    """A job before a verb: its state, and whether its cancellation was requested."""

    state: State
    stopping: bool


class AuditedStore:
    """Passes every call on, and records the verbs of operators."""

    def __init__(self, store: Store, who: str, group: Group) -> None:
        self._store = store
        self._who = who
        self._group: Group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        before = await self._read_jobs(job_ids)
        after = await self._store.cancel(job_ids, reason)
        await self._record_jobs(job_ids, before, after, lambda _: "task.cancel")
        return after

    async def retry(self, job_ids: Sequence[JobId], *, alone: bool = False) -> list[State | None]:
        before = await self._read_jobs(job_ids)
        after = await self._store.retry(job_ids, alone=alone)
        await self._record_jobs(
            job_ids, before, after, lambda old: "dlq.replay" if old == {State.DEAD_LETTER} else "task.retry"
        )
        return after

    async def reschedule(
        self, job_ids: Sequence[JobId], *, lane: str | None = None, now: bool = False
    ) -> list[State | None]:
        after = await self._store.reschedule(job_ids, lane=lane, now=now)
        moved = [job_id for job_id, state in zip(job_ids, after, strict=True) if state is State.QUEUED]
        if moved:
            facts = {"lane": lane, "now": now, "jobs": len(moved)}
            await self._record("task.reschedule", _named(moved), after=facts)
        return after

    async def cancel_batch(self, batch_id: BatchId) -> BatchRecord | None:
        before = (await self._store.get_batches([batch_id]))[0]
        after = await self._store.cancel_batch(batch_id)
        if before is not None and after is not None and before.cancel_requested_at != after.cancel_requested_at:
            await self._record("batch.cancel", batch_id, before={"status": before.status, "live": before.live})
        return after

    async def close_batch(self, batch_id: BatchId) -> BatchRecord | None:
        before = (await self._store.get_batches([batch_id]))[0]
        after = await self._store.close_batch(batch_id)
        if before is not None and before.open:
            await self._record("batch.close", batch_id, before={"status": before.status, "live": before.live})
        return after

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        removed = await self._store.purge(states, job_ids, limit=limit)
        if removed:
            what = "dlq.purge" if set(states) == {State.DEAD_LETTER} else "task.purge"
            target = _named(job_ids) if job_ids is not None else f"any {', '.join(states)}"
            await self._record(what, target, after={"removed": removed})
        return removed

    async def drain(self, worker_id: str) -> bool:
        workers = {worker.worker_id: worker.state for worker in (await self._store.stats()).workers}
        done = await self._store.drain(worker_id)
        if done and workers.get(worker_id) is not WorkerState.DRAINING:
            await self._record("worker.drain", worker_id, before={"status": "active"}, after={"status": "draining"})
        return done

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        is_audited = (kind, name) in ((POLICIES, CURRENT), (RULES, PAUSES)) or kind in (TASKS, CRONS, CRON_PAUSES)
        known = await self._store.read(kind, name) if is_audited else []
        version = await self._store.write(kind, name, body, if_version=if_version)
        if is_audited and version is not None and body != (known[0].body if known else None):
            await self._record_document(kind, name, known[0] if known else None, body)
        return version

    async def _read_jobs(self, job_ids: Sequence[JobId]) -> list[_JobBefore | None]:
        return [
            None if job is None else _JobBefore(job.state, job.cancel_requested_at is not None)
            async for job in get_in_steps(self._store.get, job_ids)
        ]

    async def _record_jobs(
        self,
        job_ids: Sequence[JobId],
        before: Sequence[_JobBefore | None],
        after: Sequence[State | None],
        name: Callable[[set[State]], str],
    ) -> None:
        changed = {
            job_id: (old.state, new)
            for job_id, old, new in zip(job_ids, before, after, strict=True)
            if old is not None
            and new is not None
            and (old.state is not new or (new is State.EXECUTING and not old.stopping))
        }
        if not changed:
            return
        what = name({old for old, _ in changed.values()})
        if len(changed) > NAMED:
            await self._record(what, _named(list(changed)), after={"jobs": len(changed)})
            return
        was = {job_id: old.value for job_id, (old, _) in changed.items()}
        now = {job_id: new.value for job_id, (_, new) in changed.items()}
        await self._record(what, _named(list(changed)), before=was, after=now)

    async def _record_document(self, kind: str, name: str, before: Document | None, body: bytes | None) -> None:
        if kind == POLICIES and body is not None:
            version, old = pointed_version(body), None
            with contextlib.suppress(PolicyError):  # A damaged document was replaced.
                old = None if before is None else await self._policy(pointed_version(before.body))
            await self._record("policy.put", f"version {version}", before=old, after=await self._policy(version))
        elif kind == RULES:
            was, now = _paused(name, None if before is None else before.body), _paused(name, body)
            what = "pause" if set(now.names()) - set(was.names()) else "resume"
            names = sorted(set(now.names()) ^ set(was.names()))
            if names:
                await self._record(what, ", ".join(names), before=paused_values(was), after=paused_values(now))
        elif kind == CRON_PAUSES:
            await self._record("cron.resume" if body is None else "cron.pause", name)
        else:
            what = f"{kind}.{'remove' if body is None else 'write'}"
            await self._record(what, name, before=None if before is None else _digest(before.body), after=_digest(body))

    async def _policy(self, version: int) -> dict[str, Any]:
        applied = await read_applied(self._store, version)
        return {"version": version, "digest": applied.digest, "note": applied.note}

    async def _record(self, what: str, target: str, *, before: Any = None, after: Any = None) -> None:
        await record(
            self._store, who=self._who, what=what, target=target, before=before, after=after, group=self._group
        )


def _paused(name: str, body: bytes | None) -> PauseSet:
    part = None if body is None else RuleReader().read(name, body)
    return PauseSet() if part is None else part.paused


def paused_values(paused: PauseSet) -> dict[str, Any]:
    return {
        "everything": paused.everything,
        "lanes": list(paused.lanes),
        "task_types": list(paused.tasks),
        "tenants": list(paused.tenants),
    }


def _named(job_ids: Sequence[JobId]) -> str:
    more = f" and {len(job_ids) - NAMED} more" if len(job_ids) > NAMED else ""
    return ", ".join(job_ids[:NAMED]) + more


def _digest(body: bytes | None) -> dict[str, str] | None:
    return None if body is None else {"sha256": hashlib.sha256(body).hexdigest()}
