"""What dashboards show of the whole queue. Each view is read once for all callers that ask at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.diagnostics import QueueDiagnostics
from headway.core.job import ClassKey, JobId, JobRecord, State
from headway.core.policy.document import DAY, HOUR, TENANT, Ladder, LimitRule, Policy
from headway.core.policy.enforced import counter_name, parameter_value
from headway.core.policy.estimate import EstimateRequest, Forecast
from headway.core.policy.guarantees import guaranteed_slots
from headway.core.policy.ladder import RunningJobs, admit
from headway.core.policy.positions import waiting_in
from headway.core.policy.units import write_rate
from headway.core.policy.why import class_reasons
from headway.core.search import JobSearch, write_search
from headway.core.timestamps import write_moment
from headway.estimates.accuracy import AccuracySummary, summaries
from headway.estimates.history import TenantUse, read_tenant_use
from headway.metrics.documents import read_documents
from headway.metrics.export import idle_reserve
from headway.metrics.series import ALL, HOUR_MS, MINUTE_MS, SeriesStep, read_series, wait_quantile
from headway.metrics.waiting import waiting_by_reason
from headway.server.serializers import estimate_values, worker_values
from headway.server.shared_read import Coalescer
from headway.server.waiting_rows import WaitingRows
from headway.stores.base import (
    WAITING_COUNTED,
    BlockedStats,
    JobQuery,
    LaneStats,
    QueueBreakdown,
    Stats,
    TenantStats,
)
from headway.stores.paging import find_in_steps, without_values

if TYPE_CHECKING:
    from headway.server.service import Service

NOW_AGE = 0.9  # Seconds for which callers share a view of the queue.
SLOW_AGE = 5.0  # Seconds for which they share what changes slowly.
RUNNING_READ = 1_000  # Executing jobs that a view reads.
RUNG_TASKS = 200
TENANTS_MAX = 1_000
TENANTS_FORECAST = 8  # Tenants that a forecast shows: those with the most waiting jobs.
COUNTED_ANEW = 20  # Tenants with more waiting jobs than a breakdown counts, whose jobs are counted one by one.
KEYS_SHOWN = 10
NOT_BLOCKED = BlockedStats()
WORKERS_MAX = 1_000
DEAD_LETTERS_READ = 5_000  # Dead letters that are grouped, the newest first.
MESSAGE_MAX = 300  # Characters of the message of an example.
RECENT_MINUTES = 5  # Minutes whose starts make the waits of "now".
FAILED = (State.FAILED.value, State.DEAD_LETTER.value)


class SlowFacts(NamedTuple):
    """What changes slowly: the last hour by the minute, and the accuracy of estimates."""

    steps: Sequence[SeriesStep]
    accuracy: Mapping[str, AccuracySummary]


class Views:
    """The views of one process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._slow: Coalescer[SlowFacts] = Coalescer(self._read_slow)
        self._overview: Coalescer[dict[str, Any]] = Coalescer(self._read_overview)
        self._tenants: Coalescer[dict[str, Any]] = Coalescer(self._read_tenants)
        self._limits: Coalescer[dict[str, Any]] = Coalescer(self._read_limits)
        self._tenant_lanes: Coalescer[dict[str, dict[str, int]]] = Coalescer(self._read_tenant_lanes)
        self._breakdown: Coalescer[QueueBreakdown] = Coalescer(self._read_breakdown)
        self._dead_letters: dict[str | None, Coalescer[dict[str, Any]]] = {}

    async def overview(self) -> dict[str, Any]:
        """Return the queue as it is now."""
        return await self._overview.recent(NOW_AGE)

    async def tenants(self) -> dict[str, Any]:
        """Return all tenants with work."""
        return await self._tenants.recent(NOW_AGE)

    async def limits(self) -> dict[str, Any]:
        """Return the limits and the ladder."""
        return await self._limits.recent(NOW_AGE)

    async def rows(self) -> WaitingRows:
        """Return what explains the waiting tasks of one list."""
        service = self._service
        forecast, policy, store = await service.forecast(), await service.policy(), await service.store()
        return WaitingRows(forecast, policy, (await self.breakdown()).blocked, store.diagnose_job)

    async def breakdown(self) -> QueueBreakdown:
        """Return the jobs by tenant and by limit, at most a second old."""
        return await self._breakdown.recent(NOW_AGE)

    async def tenant_lanes(self) -> dict[str, dict[str, int]]:
        """Return how many jobs wait in each lane, of the tenants with the most waiting jobs."""
        return await self._tenant_lanes.recent(SLOW_AGE)

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
            known = self._dead_letters[tenant] = Coalescer(lambda: self._read_dead_letters(tenant))
        return await known.recent(SLOW_AGE)

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
        slow = await self._slow.recent(SLOW_AGE)
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


def overview_values(
    stats: Stats, forecast: Forecast, policy: Policy, slow: SlowFacts, blocked: Mapping[str, BlockedStats]
) -> dict[str, Any]:
    """Return the queue as it is now."""
    queue, live = forecast.queue, stats.live_workers
    oldest = [lane.oldest_at for lane in stats.lanes.values() if lane.oldest_at is not None and lane.waiting]
    slots = slot_values(stats, policy)
    lanes = _lane_values(stats, forecast, policy, slow, slots["total"])
    slots["lent"] = round(sum(lane["slots"]["borrowed"] for lane in lanes), 2)
    return {
        "at": write_moment(stats.now_at),
        "waiting": sum(lane.waiting for lane in stats.lanes.values()),
        "delayed": sum(lane.delayed for lane in stats.lanes.values()),
        "running": sum(lane.executing for lane in stats.lanes.values()),
        "oldest_at": write_moment(min(oldest)) if oldest else None,
        "failed_last_hour": sum(_failed(step) for step in slow.steps),
        "workers": len(live),
        "dead_letters": stats.kept.get(State.DEAD_LETTER, 0),
        "lanes": lanes,
        "slots": slots,
        "waiting_by_reason": _waiting_by_reason(stats, queue, policy, blocked),
        "accuracy": {lane: asdict(one) for lane, one in slow.accuracy.items()},
        "paused": queue.rules.paused.names(),
    }


def slot_values(stats: Stats, policy: Policy) -> dict[str, Any]:
    """Return the slots of live workers, cut into used, reserved and free."""
    live, reserve = stats.live_workers, policy.reserve
    total, used = sum(worker.slots for worker in live), sum(worker.running for worker in live)
    reserved = min(total, reserve.slots) if reserve.scope == "pool" else sum(worker.reserved for worker in live)
    inside = sum(lane.executing for name, lane in stats.lanes.items() if name in reserve.lanes)
    return {
        "total": total,
        "used": used,
        "free": max(0, total - used),
        "reserved": reserved,
        "reserved_used": min(reserved, inside),
        "reserved_idle": idle_reserve(live, stats.lanes, policy),
    }


def _lane_values(
    stats: Stats, forecast: Forecast, policy: Policy, slow: SlowFacts, total: int
) -> list[dict[str, Any]]:  # fmt: skip
    queue, sure = forecast.queue, guaranteed_slots(policy, total, len(stats.live_workers))
    reasons = class_reasons(queue, policy)
    recent = _recent(slow.steps, stats.now_at)
    found = []
    for name in sorted({*policy.lanes, *stats.lanes}, key=lambda name: (_level(policy, name), name)):
        lane, declared = stats.lanes.get(name, LaneStats()), policy.lanes.get(name)
        row = recent.lanes.get(name) if recent is not None else None
        codes: Counter[str] = Counter()
        for view in queue.snapshot.classes:
            if view.key.lane == name and view.key in reasons:
                codes[reasons[view.key]] += view.waiting
        last = slow.steps[-1].lanes.get(name) if slow.steps else None
        found.append(
            {
                "name": name,
                "level": _level(policy, name),
                "weight": 1 if declared is None else declared.weight,
                "paused": queue.rules.paused.everything or name in queue.rules.paused.lanes,
                "waiting": lane.waiting,
                "delayed": lane.delayed,
                "running": lane.executing,
                "oldest_at": write_moment(lane.oldest_at) if lane.waiting else None,
                "wait_p50": None if row is None else wait_quantile(row.waits, 0.5),
                "wait_p90": None if row is None else wait_quantile(row.waits, 0.9),
                "started_last_minute": 0 if last is None else last.started,
                "why": codes.most_common(1)[0][0] if codes else None,
                "starts_in": None if declared is None else lane_estimate(forecast, name),
                "slots": _lane_slots(sure.get(name, 0.0), lane, stats),
            }
        )
    return found


def lane_estimate(forecast: Forecast, lane: str) -> dict[str, Any] | None:
    """Return when a task that is submitted to a lane now would start."""
    key = ClassKey(lane)
    return estimate_values(forecast.near(EstimateRequest(key, ahead=waiting_in(forecast.queue.snapshot, key))))


def _level(policy: Policy, name: str) -> int:
    return policy.lanes[name].level if name in policy.lanes else 1_000_000


def _lane_slots(sure: float, lane: LaneStats, stats: Stats) -> dict[str, Any]:
    used = lane.executing
    others = sum(other.executing for other in stats.lanes.values()) - used
    lent = max(0.0, sure - used) if not lane.waiting else 0.0
    return {
        "guaranteed": round(sure, 2),
        "used": used,
        "borrowed": round(max(0.0, used - sure), 2),
        "lent": round(min(lent, others), 2),
    }


def _waiting_by_reason(
    stats: Stats, queue: QueueDiagnostics, policy: Policy, blocked: Mapping[str, BlockedStats]
) -> dict[str, int]:
    """Return how many tasks wait for each reason, of all lanes and with the delayed ones."""
    found = Counter[str]()
    for counts in waiting_by_reason(stats, queue, policy, blocked).values():
        found.update(counts)
    delayed = sum(lane.delayed for lane in stats.lanes.values())
    if delayed:
        found["scheduled"] = delayed
    return dict(found)


def _recent(steps: Sequence[SeriesStep], now_at: int) -> SeriesStep | None:
    """Return the last minutes as one step."""
    found: SeriesStep | None = None
    for step in steps:
        if step.at >= now_at - (RECENT_MINUTES + 1) * MINUTE_MS:
            if found is None:
                found = SeriesStep(step.at, 0, 0, {})
            found.add(step)
    return found


def _failed(step: SeriesStep) -> int:
    row = step.lanes.get(ALL)
    return 0 if row is None else sum(row.ended.get(end, 0) for end in FAILED)


def tenant_values(
    rows: Mapping[str, TenantStats], use: Mapping[str, TenantUse], queue: QueueDiagnostics, policy: Policy
) -> list[dict[str, Any]]:
    """Return the tenants with work now or in the last hour, the one that suffers most first."""
    weights, paused = policy.tenants, queue.rules.paused
    active = {
        name for name in {*rows, *use} if name and (use.get(name, TenantUse()).jobs >= 0.5 or any(rows.get(name, ())))
    }
    whole = sum(weights.weights.get(name, weights.default_weight) for name in active)
    ran = sum(use[name].seconds for name in active if name in use)
    full = _full_keys(queue)
    found = []
    for name in active:
        row, had, weight = (
            rows.get(name, TenantStats()),
            use.get(name),
            weights.weights.get(name, weights.default_weight),
        )
        entitled = weight / whole
        share = None if not ran else (0.0 if had is None else had.seconds / ran)
        found.append(
            {
                "tenant": name,
                "weight": weight,
                "paused": paused.everything or name in paused.tenants,
                "entitled_share": round(entitled, 4),
                "had_share": None if share is None else round(share, 4),
                "unfairness": round(max(0.0, entitled - (share or 0.0)), 4) if row.waiting else 0.0,
                "running": row.running,
                "waiting": row.waiting,
                "oldest_at": write_moment(row.oldest_at),
                "wait_p50": None if had is None else had.waited(0.5),
                "wait_p90": None if had is None else had.waited(0.9),
                "limits_at_cap": sorted(key for key, rule in full.items() if _tenant_of(key, rule) == name),
            }
        )
    return sorted(found, key=lambda one: (-one["unfairness"], -one["waiting"], one["tenant"]))


def _full_keys(queue: QueueDiagnostics) -> dict[str, LimitRule]:
    """Return the counters that have no room."""
    held = Counter(key for job in queue.executing for key in job.held)
    found = {}
    for key, count in held.items():
        rule = queue.rules.limits.get(key.partition("=")[0])
        if rule is not None and rule.concurrency is not None and count >= rule.concurrency:
            found[key] = rule
    return found


def _tenant_of(key: str, rule: LimitRule) -> str | None:
    """Return the tenant that a counter belongs to."""
    _, _, rest = key.partition("=")
    if rule.by == TENANT:
        return rest
    tenant, separated, _ = rest.partition("=")
    return tenant.replace("%3D", "=").replace("%25", "%") if separated else None


def limit_values(
    queue: QueueDiagnostics, policy: Policy, blocked: Mapping[str, BlockedStats]
) -> list[dict[str, Any]]:  # fmt: skip
    """Return each limit with the tasks that count against it and those that wait for it."""
    held = Counter(key for job in queue.executing for key in job.held)
    keys_of: dict[str, list[str]] = {}
    for key in {*held, *blocked}:
        keys_of.setdefault(key.partition("=")[0], []).append(key)
    found = []
    for name, rule in sorted(queue.rules.limits.items()):
        keys = sorted(keys_of.get(counter_name(name), ()))
        keys.sort(key=lambda key: (blocked.get(key, NOT_BLOCKED).waiting, held[key]), reverse=True)
        waits = [blocked[key] for key in keys if key in blocked]
        opens = [one.open_at for one in waits if one.open_at is not None]
        found.append(
            {
                "name": name,
                "source": "policy" if name in policy.limits else "task",
                "by": rule.by,
                "scope": rule.scope,
                "tasks": list(rule.tasks),
                "concurrency": rule.concurrency,
                "rate": None if rule.count is None else write_rate(rule.count, rule.period_ms),
                "burst": rule.burst,
                "running": sum(held[key] for key in keys),
                "waiting": sum(one.waiting for one in waits),
                "keys_at_cap": sum(rule.concurrency is not None and held[key] >= rule.concurrency for key in keys),
                "next_start_at": write_moment(min(opens, default=None)),
                "top_keys": [_key_values(key, rule, held[key], blocked.get(key)) for key in keys[:KEYS_SHOWN]],
            }
        )
    return found


def _key_values(key: str, rule: LimitRule, running: int, blocked: BlockedStats | None) -> dict[str, Any]:
    blocked = blocked or NOT_BLOCKED
    return {
        "key": key,
        "value": _value(key, rule),
        "running": running,
        "waiting": blocked.waiting,
        "next_start_at": write_moment(blocked.open_at),
    }


def _value(key: str, rule: LimitRule) -> str | None:
    if rule.by is None:
        return None
    return key.partition("=")[2] if rule.by == TENANT else parameter_value(key)


def _next_lowered(ladder: Ladder, running: RunningJobs | None) -> JobId | None:
    """Return the job that is lowered first if another one needs its place, unless chance decides."""
    if running is None or ladder.victim == "random" or len(running.counts) != len(ladder.rungs):
        return None
    _, lowered = admit(ladder, running._replace(free=0))
    return lowered[0].job_id if lowered else None


def ladder_values(queue: QueueDiagnostics, policy: Policy, running: Sequence[JobRecord]) -> dict[str, Any]:
    """Return the rungs, how many tasks each has, and which."""
    ladder = policy.ladder
    jobs: RunningJobs | None = queue.snapshot.running_jobs
    counts = (
        list(jobs.counts) if jobs is not None and len(jobs.counts) == len(ladder.rungs) else [0] * len(ladder.rungs)
    )
    slots = 0 if jobs is None else jobs.slots
    waiting = Counter[str]()
    for view in queue.snapshot.classes:
        if view.key.rung is not None:
            waiting[view.key.rung] += view.waiting
    tasks, lowered = [], _next_lowered(ladder, jobs)
    for job in running:
        rung = ladder.find(job.assigned)
        if rung is not None and job.started_at is not None:
            tasks.append(
                {
                    "task_id": job.job_id,
                    "task_type": job.task,
                    "tenant": job.tenant,
                    "priority": job.lane,
                    "asked": job.rung,
                    "rung": rung.name,
                    "started_at": write_moment(job.started_at),
                    "ends_at": write_moment(job.started_at + rung.length_ms),
                    "next_lowered": job.job_id == lowered,
                }
            )
    return {
        "slots": slots,
        "victim": ladder.victim,
        "lower": ladder.lower,
        "rungs": [
            {
                "name": rung.name,
                "seconds": rung.length_ms / 1_000,
                "limit": rung.limit,
                "percent": rung.percent,
                "most": rung.most(slots),
                "running": counts[at],
                "running_from": sum(counts[at:]),
                "waiting": waiting[rung.name],
            }
            for at, rung in enumerate(ladder.rungs)
        ],
        "tasks": tasks[:RUNG_TASKS],
    }
