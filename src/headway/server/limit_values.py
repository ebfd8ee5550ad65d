"""Limits and the ladder in the values that dashboards show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.diagnostics import QueueDiagnostics
from headway.core.job import JobId, JobRecord
from headway.core.policy.document import TENANT, Ladder, LimitRule, Policy
from headway.core.policy.enforced import counter_name, parameter_value
from headway.core.policy.ladder import RunningJobs, admit
from headway.core.policy.units import write_rate
from headway.core.timestamps import write_moment
from headway.stores.base import BlockedStats

RUNG_TASKS = 200
KEYS_SHOWN = 10
NOT_BLOCKED = BlockedStats()


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
