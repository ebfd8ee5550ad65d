"""Views of the whole queue for dashboards. Each is read once for all callers that ask at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headway.core.job import JobRecord, State
from headway.core.policy.document import DAY, HOUR
from headway.core.search import JobSearch, write_search
from headway.core.timestamps import write_moment
from headway.estimates.accuracy import summaries
from headway.estimates.history import read_tenant_use
from headway.metrics.documents import read_documents
from headway.metrics.series import HOUR_MS, MINUTE_MS, read_series
from headway.server.limit_values import ladder_values, limit_values
from headway.server.overview_values import SlowFacts, overview_values
from headway.server.serializers import worker_values
from headway.server.shared_read import SharedView, shared_for
from headway.server.tenant_values import tenant_values
from headway.server.waiting_rows import WaitingRows
from headway.stores.base import WAITING_COUNTED, JobQuery, QueueBreakdown
from headway.stores.paging import find_in_steps, without_values

if TYPE_CHECKING:
    from headway.server.service import Service

NOW_AGE = 0.9  # Seconds for which callers share a view of the queue.
SLOW_AGE = 5.0  # Seconds for which they share what changes slowly.
RUNNING_READ = 1_000  # Executing jobs that a view reads.
TENANTS_MAX = 1_000
TENANTS_FORECAST = 8  # Tenants that a forecast shows: those with the most waiting jobs.
COUNTED_ANEW = 20  # Tenants with more waiting jobs than a breakdown counts, whose jobs are counted one by one.
WORKERS_MAX = 1_000
DEAD_LETTERS_READ = 5_000  # Dead letters that are grouped, the newest first.
MESSAGE_MAX = 300  # Characters of the message of an example.


class Views:
    """The views of one process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._slow = shared_for(SLOW_AGE, self._read_slow)
        self.overview = shared_for(NOW_AGE, self._read_overview)  # The queue as it is now.
        self.tenants = shared_for(NOW_AGE, self._read_tenants)  # All tenants with work.
        self.limits = shared_for(NOW_AGE, self._read_limits)  # The limits and the ladder.
        self.breakdown = shared_for(NOW_AGE, self._read_breakdown)  # The jobs by tenant and by limit.
        # How many jobs wait in each lane, of the tenants with the most waiting jobs.
        self.tenant_lanes = shared_for(SLOW_AGE, self._read_tenant_lanes)
        self._dead_letters: dict[str | None, SharedView[dict[str, Any]]] = {}

    async def rows(self) -> WaitingRows:
        """Return what explains the waiting tasks of one list."""
        service = self._service
        forecast, policy, store = await service.forecast(), await service.policy(), await service.store()
        return WaitingRows(forecast, policy, (await self.breakdown()).blocked, store.diagnose_job)

    async def _read_tenant_lanes(self) -> dict[str, dict[str, int]]:
        store, rows = await self._service.store(), (await self.breakdown()).tenants
        most = sorted((name for name, row in rows.items() if row.waiting), key=lambda name: -rows[name].waiting)
        found: dict[str, dict[str, int]] = {}
        for name in most[:TENANTS_FORECAST]:
            found[name] = {lane: row.waiting for lane, row in (await store.waiting_of(name)).items()}
        return found

    async def _read_breakdown(self) -> QueueBreakdown:
        return await (await self._service.store()).breakdown(limit=TENANTS_MAX)

    async def dead_letters(self, tenant: str | None) -> dict[str, Any]:
        """Return the groups of dead letters, of one tenant or of all."""
        known = self._dead_letters.get(tenant)
        if known is None:
            if len(self._dead_letters) >= TENANTS_MAX:
                self._dead_letters.clear()
            known = self._dead_letters[tenant] = shared_for(SLOW_AGE, lambda: self._read_dead_letters(tenant))
        return await known()

    async def workers(self) -> dict[str, Any]:
        """Return the workers, without the tasks that they run."""
        stats = await self._service.client.stats()
        found = sorted(stats.workers, key=lambda worker: worker.worker_id)
        return {
            "items": [worker_values(worker) for worker in found[:WORKERS_MAX]],
            "complete": len(found) <= WORKERS_MAX,
        }

    async def _read_dead_letters(self, tenant: str | None) -> dict[str, Any]:
        query = JobQuery((State.DEAD_LETTER,), tenant=tenant, by_end=True, limit=DEAD_LETTERS_READ + 1)
        groups: dict[tuple[str, str | None], list[JobRecord]] = {}
        scanned, now_at = 0, 0
        async with self._service.listing:
            async for job in find_in_steps((await self._service.store()).find, query):
                scanned, now_at = scanned + 1, job.seen_at
                if scanned <= DEAD_LETTERS_READ:
                    kind = None if job.error is None else job.error.type
                    groups.setdefault((job.task, kind), []).append(without_values(job))
        found = sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0][0]))
        return {
            "groups": [group_values(task, kind, jobs, now_at) for (task, kind), jobs in found],
            "scanned": min(scanned, DEAD_LETTERS_READ),
            "complete": scanned <= DEAD_LETTERS_READ,
        }

    async def _read_slow(self) -> SlowFacts:
        store = await self._service.store()
        now_at = (await store.snapshot()).now_at
        steps = await read_series(store, since_at=now_at - HOUR_MS, step_ms=MINUTE_MS, now_at=now_at)
        return SlowFacts(steps, summaries(await read_documents(store)))

    async def _read_overview(self) -> dict[str, Any]:
        service = self._service
        policy, forecast = await service.policy(), await service.forecast(0.0)
        stats = await service.client.stats()
        slow = await self._slow()
        return overview_values(stats, forecast, policy, slow, (await self.breakdown()).blocked)

    async def _read_tenants(self) -> dict[str, Any]:
        service = self._service
        store, policy = await service.store(), await service.policy()
        queue = (await service.forecast(NOW_AGE)).queue
        use, rows = await read_tenant_use(store, queue.now_at), (await self.breakdown()).tenants
        for tenant in [name for name, row in rows.items() if row.waiting >= WAITING_COUNTED][:COUNTED_ANEW]:
            waiting = sum(lane.waiting for lane in (await store.waiting_of(tenant)).values())
            rows = rows | {tenant: rows[tenant]._replace(waiting=waiting)}
        items = tenant_values(rows, use, queue, policy)
        return {"at": write_moment(queue.now_at), "items": items, "complete": len(rows) < TENANTS_MAX}

    async def _read_limits(self) -> dict[str, Any]:
        queue, policy = (await self._service.forecast(NOW_AGE)).queue, await self._service.policy()
        ladder = None
        if policy.ladder.rungs:
            ladder = ladder_values(queue, policy, await self._running())
        items = limit_values(queue, policy, (await self.breakdown()).blocked)
        return {"at": write_moment(queue.now_at), "items": items, "ladder": ladder}

    async def _running(self) -> list[JobRecord]:
        query = JobQuery((State.EXECUTING,), limit=RUNNING_READ)
        return [without_values(job) async for job in find_in_steps((await self._service.store()).find, query)]


def group_values(task: str, kind: str | None, jobs: Sequence[JobRecord], now_at: int) -> dict[str, Any]:
    """Return a group of dead letters, which are sorted by their ends, the newest first."""
    ends = [job.finished_at or 0 for job in jobs]
    search = JobSearch((State.DEAD_LETTER,), tasks=(task,), errors=() if kind is None else (kind,))
    error = jobs[0].error
    return {
        "task_type": task,
        "error_type": kind,
        "count": len(jobs),
        "last_hour": sum(end > now_at - HOUR for end in ends),
        "last_day": sum(end > now_at - DAY for end in ends),
        "last_week": sum(end > now_at - 7 * DAY for end in ends),
        "first_at": write_moment(ends[-1]),
        "last_at": write_moment(ends[0]),
        "example_task_id": jobs[0].job_id,
        "example_message": None if error is None else error.message[:MESSAGE_MAX],
        "filter": write_search(search),
    }
