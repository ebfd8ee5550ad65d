"""The verbs of commands through a server, over its REST interface."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec

from headway.cli.operator import BulkEnd, JobReport, PolicyChange
from headway.client.batch import RetryMode
from headway.client.job_values import read_task
from headway.core import errors
from headway.core.errors import (
    BatchNotFound,
    ConfigError,
    HeadwayError,
    JobNotFound,
    PolicyError,
    ServerRefused,
    StoreTooNew,
)
from headway.core.job import JobId, JobRecord, State, SubmitReply
from headway.core.policy.document import Policy
from headway.core.policy.enforced import PauseSet
from headway.core.policy.estimate import Estimate
from headway.core.policy.lint import Finding, OfferedLoad
from headway.core.policy.why import Reason
from headway.core.policy.writer import policy_data
from headway.core.search import JobSearch, write_search
from headway.core.timestamps import read_moment
from headway.core.worker import TASK, WorkerInfo, WorkerState
from headway.core.workflow import BatchId, BatchQuery
from headway.estimates.accuracy import AccuracySummary
from headway.estimates.load import JOBS_READ, load_of
from headway.estimates.scaling import ScaleAdvice
from headway.maintenance.bulk import Action
from headway.observability.job_output import OUTPUT
from headway.policy_store.cron_views import CronRun, CronView
from headway.policy_store.versions import PolicyVersion
from headway.protocol.http_client import HttpClient
from headway.stores.base import Abilities, Document, JobQuery, LaneStats, Stats
from headway.version import __version__

API = "/api/v1"
PAGE_MAX = 500  # Jobs that a server lists in one answer.
NAMED_MAX = 50  # Ids that fit into an address.
BULK_EVERY = 0.3  # Seconds between looks at a bulk action.
CHANGED_MAX = 500  # Ids of one change, so that it blocks the store's other writers only briefly.
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")  # What may be the id of a job. A server refuses anything else.

# A refusal that a store could have made is raised as the store's error.
_SAME: dict[str, type[HeadwayError]] = {
    error.code: error
    for error in (
        errors.BadArguments,
        errors.BadEdge,
        errors.BatchClosed,
        errors.BatchNotFound,
        errors.ConfigError,
        errors.CountGrew,
        errors.ExpectNeeded,
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


class HttpOperator:
    """The verbs of ``StoreOperator``, each one or two requests. The token is for all tenants, with the scope read.

    ``history``: whether ``find`` finds jobs that only the history of the server's store has.
    """

    abilities = Abilities(durable=True, shared=True, any_loop=False, remote=True)
    namespace = ""  # The server's own.

    def __init__(self, address: str, token: str | None, *, history: bool = False) -> None:
        self._http = HttpClient(address, token)
        self._history = history
        self._ahead_ms = time.time() * 1_000 - time.monotonic() * 1_000
        if token is not None and not self._http.address.is_private:
            warnings.warn(f"the token goes to {self._http.address} in plain text; use https", stacklevel=2)

    async def open(self) -> None:
        """Check that the server answers and lets this token in, and read the time of its store."""
        try:
            reply = await self._get("/server")
        except BaseException as problem:
            await self.close()
            if isinstance(problem, ServerRefused) and problem.code == "not_found":
                raise StoreTooNew(
                    f"{self._http.address} does not answer as Headway {__version__} does; use one release on both sides"
                ) from problem
            raise
        self._ahead_ms = read_moment(reply["time"]) - time.monotonic() * 1_000

    async def close(self) -> None:
        await self._http.close()

    async def now_at(self) -> int:
        return self._now_at()

    async def submit(self, body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Submit a task, or only ask what would happen to it. Return the server's reply."""
        return await self._ask("POST", "/tasks", body, dry_run=dry_run or None)

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        found: dict[str, JobRecord] = {}
        for part in _parts(job_ids, NAMED_MAX):
            async for values in self._items("/tasks", task_id=part, include="parameters,result"):
                found[values["task_id"]] = self._job(values)
        return [found.get(job_id) for job_id in job_ids]

    async def find(self, query: JobQuery, *, include: str | None = "parameters,result") -> list[JobRecord]:
        if query.by_end or query.submitted_before_at is not None or query.submitted_after_at is not None:
            raise NotImplementedError("no command asks a server for jobs by time or in the order of their end")
        return await self._list(
            query.limit,
            cursor=query.before,
            status=list(query.states),
            task_type=query.task,
            priority=query.lane,
            tenant=query.tenant,
            worker=query.worker_id,
            include=include,
            history=self._history,
        )

    async def search(self, search: JobSearch, *, before: int | None, limit: int) -> list[JobRecord]:
        return await self._list(limit, cursor=before, q=write_search(search), history=self._history)

    async def _list(self, limit: int, **query: Any) -> list[JobRecord]:
        found: list[JobRecord] = []
        items = self._items("/tasks", limit=min(limit, PAGE_MAX), **query)
        async with aclosing(items):
            async for values in items:
                found.append(self._job(values))
                if len(found) == limit:
                    break
        return found

    async def report(self, job_id: JobId) -> JobReport | None:
        if _ID.fullmatch(job_id) is None:
            return None
        try:
            values = await self._get(f"/tasks/{job_id}")
            reply = await self._get(f"/tasks/{job_id}/why")
        except JobNotFound:
            return None
        estimate = values["estimate"]
        reasons = [_reason(values) for values in reply["reasons"]]
        waited = {reason: round(seconds * 1_000) for reason, seconds in reply["waited_seconds"].items()}
        return JobReport(self._job(values), estimate and Estimate(**estimate), reasons, waited, values["after"])

    async def passed_over(self, job: JobRecord) -> int:
        reply = await self._get(f"/tasks/{job.job_id}/why")
        return int(reply["passed_over"])

    async def stats(self) -> Stats:
        reply = await self._get("/queue/counts")
        lanes = {
            name: LaneStats(**lane | {"oldest_at": _moment(lane["oldest_at"])})
            for name, lane in reply["queues"].items()
        }
        workers = tuple([_worker(one) async for one in self._items("/workers", "workers", tasks=False)])
        return Stats(read_moment(reply["at"]), lanes, workers, reply["totals"], reply["recent"], reply["kept"])

    async def cancel(self, job_ids: Sequence[JobId]) -> list[State | None]:
        return await self._change("/tasks/cancel", job_ids)

    async def retry(self, job_ids: Sequence[JobId]) -> list[State | None]:
        return await self._change("/tasks/retry", job_ids)

    async def purge_dead(self, job_ids: Sequence[JobId]) -> int:
        return sum(
            [
                (await self._ask("POST", "/dlq/purge", {"task_ids": part}))["removed"]
                for part in _parts(job_ids, CHANGED_MAX)
            ]
        )

    async def drain(self, worker_id: str) -> bool:
        path = f"/workers/{quote(worker_id, safe='')}/drain"
        return await self._ask_unless("worker_not_found", path) is not None

    async def paused(self) -> PauseSet:
        return _paused(await self._get("/pauses"))

    async def pause(self, lane: str | None, task: str | None, tenant: str | None) -> PauseSet:
        return _paused(await self._ask("POST", "/pause", {"lane": lane, "task_type": task, "tenant": tenant}))

    async def resume(self, lane: str | None, task: str | None, tenant: str | None) -> PauseSet:
        return _paused(await self._ask("POST", "/resume", {"lane": lane, "task_type": task, "tenant": tenant}))

    async def policy(self) -> Policy:
        return (await self.policy_version()).policy

    async def policy_version(self, version: int | None = None) -> PolicyVersion:
        return _version(await self._get("/policy" if version is None else f"/policy/versions/{version}"))

    async def policy_versions(self) -> list[PolicyVersion]:
        """Read all versions, newest first, without the policies themselves."""
        return [_version(values) async for values in self._items("/policy/versions")]

    async def apply_policy(self, policy: Policy, note: str) -> PolicyChange:
        before = await self.policy_version()
        reply = await self._ask("PUT", "/policy", policy_data(policy), note=note)
        return PolicyChange(before, _version(reply), _findings(reply))

    async def roll_back(self, to: int | None) -> PolicyChange:
        before = await self.policy_version()
        if not before.version:
            raise PolicyError("no policy was ever applied, so there is none to roll back to")
        reply = await self._ask("POST", "/policy/rollback", {"to": to})
        return PolicyChange(before, _version(reply), _findings(reply))

    async def recent_load(self, policy: Policy) -> OfferedLoad | None:
        query = JobQuery(states=(State.COMPLETED,), limit=JOBS_READ)
        return load_of(await self.find(query, include=None), policy)

    async def accuracy(self) -> dict[str, AccuracySummary]:
        reply = await self._get("/queue/estimates")
        return {lane: AccuracySummary(**values) for lane, values in reply["queues"].items()}

    async def scale(self, lane: str, within: float) -> ScaleAdvice:
        return ScaleAdvice(**await self._get("/scale", lane=lane, within=f"{round(within * 1_000)}ms"))

    async def crons(self) -> list[CronView]:
        return [_cron(values) async for values in self._items("/crons")]

    async def run_cron(self, name: str) -> SubmitReply | None:
        reply = await self._act_on_cron(name, "run")
        return None if reply is None else SubmitReply(JobId(reply["task_id"]), reply["deduplicated"])

    async def pause_cron(self, name: str) -> bool:
        return await self._act_on_cron(name, "pause") is not None

    async def resume_cron(self, name: str) -> bool:
        return await self._act_on_cron(name, "resume") is not None

    async def count_bulk(self, action: Action, where: str, lane: str | None) -> tuple[int, list[JobId]]:
        body = {"action": action, "filter": where, "lane": lane, "dry_run": True}
        reply = await self._ask("POST", "/bulk", body)
        if not reply["exact"]:
            raise ConfigError("too many jobs fit to count them in time; narrow the search")
        return reply["count"], [JobId(one["task_id"]) for one in reply["examples"]]

    async def run_bulk(self, action: Action, where: str, lane: str | None, expect: int) -> BulkEnd:
        body = {"action": action, "filter": where, "lane": lane, "expect": expect}
        operation_id = (await self._ask("POST", "/bulk", body))["operation_id"]
        while True:
            reply = await self._get(f"/bulk/{operation_id}")
            if reply["status"] != "running":
                return BulkEnd(operation_id, reply["status"], reply["changed"], reply["visited"], reply["error"])
            await asyncio.sleep(BULK_EVERY)

    async def _act_on_cron(self, name: str, verb: str) -> dict[str, Any] | None:
        return await self._ask_unless("cron_not_found", f"/crons/{quote(name, safe='')}/{verb}")

    async def batches(self, query: BatchQuery) -> dict[str, Any]:
        return await self._get(
            "/batches", tenant=query.tenant, status=list(query.statuses), cursor=query.before, limit=query.limit
        )

    async def batch(self, batch_id: BatchId) -> dict[str, Any] | None:
        return await self._batch("GET", batch_id)

    async def cancel_batch(self, batch_id: BatchId) -> dict[str, Any] | None:
        return await self._batch("POST", batch_id, "/cancel", {})

    async def retry_batch(self, batch_id: BatchId, mode: RetryMode) -> int:
        reply = await self._ask("POST", f"/batches/{batch_id}/retry", {"mode": mode})
        return int(reply["retried"])

    async def _batch(
        self, method: Literal["GET", "POST"], batch_id: BatchId, verb: str = "", body: Any = None
    ) -> dict[str, Any] | None:
        if _ID.fullmatch(batch_id) is None:
            return None
        try:
            return await self._ask(method, f"/batches/{batch_id}{verb}", body)
        except BatchNotFound:
            return None

    # ------------------------------------------------------------------ what a Client needs of a store

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        """Read the output of a job; no other document."""
        if kind != OUTPUT or name is None:
            raise ConfigError(f"documents of kind {kind!r} cannot be read through a server; use --store")
        return [Document(kind, name, 0, msgspec.json.encode(await self._get(f"/tasks/{name}/output")))]

    def subscribe(self, name: str) -> _NoSubscription:
        return _NoSubscription()

    # ------------------------------------------------------------------ requests

    async def _change(self, path: str, job_ids: Sequence[JobId]) -> list[State | None]:
        found: dict[str, State | None] = {}
        for part in _parts(job_ids, CHANGED_MAX):
            reply = await self._ask("POST", path, {"task_ids": part})
            found |= {one["task_id"]: one["status"] and State(one["status"]) for one in reply["tasks"]}
        return [found.get(job_id) for job_id in job_ids]

    async def _items(self, path: str, name: str = "items", **query: Any) -> AsyncGenerator[dict[str, Any]]:
        """Follow the pages of a list to its end."""
        while True:
            page = await self._get(path, **query)
            for item in page[name]:
                yield item
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    async def _ask_unless(self, absent: str, path: str) -> dict[str, Any] | None:
        """Post a command. Return None if the server refuses it with the code ``absent``."""
        try:
            return await self._ask("POST", path, {})
        except ServerRefused as refusal:
            if refusal.code == absent:
                return None
            raise

    async def _get(self, path: str, **query: Any) -> dict[str, Any]:
        return await self._ask("GET", path, None, **query)

    async def _ask(self, method: Literal["GET", "POST", "PUT"], path: str, body: Any, **query: Any) -> dict[str, Any]:
        given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        words = urlencode({name: value for name, value in given.items() if value is not None}, doseq=True)
        try:
            whole = f"{API}{path}?{words}" if words else f"{API}{path}"
            return await self._http.ask(whole, body, dict[str, Any], method=method)
        except ServerRefused as refusal:
            same = _SAME.get(refusal.code)
            if same is None:
                raise
            raise same(str(refusal), **refusal.facts) from refusal

    def _now_at(self) -> int:
        return round(self._ahead_ms + time.monotonic() * 1_000)

    def _job(self, values: dict[str, Any]) -> JobRecord:
        return read_task(values, self._now_at())


class _NoSubscription:
    """No wake-ups come through a server: a watcher reads its jobs each second."""

    call = None

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        await asyncio.sleep(timeout)
        return None

    def close(self) -> None:
        pass


def _worker(values: dict[str, Any]) -> WorkerInfo:
    return WorkerInfo(
        worker_id=values["worker_id"],
        host=values["host"],
        pid=values["pid"],
        slots=values["capacity"],
        reserved=values["reserved"],
        offers=(*values["capabilities"], *(f"{TASK}{name}" for name in values["task_types"])),
        version=values["version"],
        state=WorkerState(values["status"]),
        started_at=read_moment(values["started_at"]),
        heartbeat_at=read_moment(values["last_heartbeat"]),
        lease_ends_at=read_moment(values["lease_ends_at"]),
        running=values["current_load"],
    )


def _cron(values: dict[str, Any]) -> CronView:
    last, recent = values["last"], values.get("recent", [])
    return CronView(
        values["task_type"],
        values["expression"],
        values["tz"],
        values["catch_up"],
        values["overlap"],
        values["paused"],
        _moment(values["next_at"]),
        last and _cron_run(last),
        values.get("held", False),
        tuple(read_moment(at) for at in values.get("upcoming", [])),
        tuple(_cron_run(run) for run in recent),
    )


def _cron_run(values: dict[str, Any]) -> CronRun:
    return CronRun(JobId(values["task_id"]), State(values["status"]), read_moment(values["created_at"]))


def _paused(values: dict[str, Any]) -> PauseSet:
    return PauseSet(values["everything"], *(tuple(values[name]) for name in ("lanes", "task_types", "tenants")))


def _version(values: dict[str, Any]) -> PolicyVersion:
    applied_at = _moment(values["applied_at"]) or 0
    return PolicyVersion(
        values["version"], applied_at, values["note"], values["digest"] or "", values.get("policy") or {}
    )


def _findings(values: dict[str, Any]) -> list[Finding]:
    return [Finding(**one) for one in values["findings"]]


def _reason(values: dict[str, Any]) -> Reason:
    code, text = values.pop("code"), values.pop("text")
    return Reason(code, text, {name: _moment(fact) if name.endswith("_at") else fact for name, fact in values.items()})


def _moment(text: str | None) -> int | None:
    return None if text is None else read_moment(text)


def _parts(job_ids: Iterable[JobId], most: int) -> list[list[JobId]]:
    """Return the ids in parts, each once; without what cannot be an id."""
    asked = [job_id for job_id in dict.fromkeys(job_ids) if _ID.fullmatch(job_id)]
    return [asked[start : start + most] for start in range(0, len(asked), most)]
