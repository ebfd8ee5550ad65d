"""The recent load of a store, from the finished jobs that it still keeps."""

from __future__ import annotations

from collections import Counter

from headway.core.job import JobRecord, State
from headway.core.policy.document import ELASTIC, Policy
from headway.core.policy.enforced import RuleIndex, rules_of
from headway.core.policy.lint import OfferedLoad, PolicyReport, check_policy
from headway.stores.base import JobQuery, Store
from headway.stores.paging import find_in_steps, without_values

JOBS_READ = 1_000  # Finished jobs that the load is computed from: enough to be representative, quick to read.
DEFAULT_SLOTS = 5  # The slots of a worker by default.


async def recent_load(store: Store, policy: Policy) -> OfferedLoad | None:
    """Return the slot-seconds a second of the jobs that completed last, by lane, rung and limit of a policy.

    None if too few jobs have completed, or all at once.
    """
    query = JobQuery(states=(State.COMPLETED,), limit=JOBS_READ)
    return load_of([without_values(job) async for job in find_in_steps(store.find, query)], policy)


async def check_here(store: Store, policy: Policy) -> PolicyReport:
    """Check a policy for the workers that are alive now, or for one of default size, and for the recent load."""
    stats = await store.stats()
    slots = [worker.slots for worker in stats.live_workers] or [DEFAULT_SLOTS]
    return check_policy(policy, slots=max(slots), workers=len(slots), load=await recent_load(store, policy))


def load_of(jobs: list[JobRecord], policy: Policy) -> OfferedLoad | None:
    """Return the load of these jobs, as if they came again and again."""
    ran = [(job, job.started_at, job.finished_at) for job in jobs if job.started_at and job.finished_at]
    if len(ran) < 2:
        return None
    from_at = min(job.submitted_at for job, _, _ in ran)
    until_at = max(finished_at for _, _, finished_at in ran)
    span_ms = until_at - from_at
    if span_ms < 1_000:
        return None
    rule_index = RuleIndex(rules_of(policy))
    lanes: Counter[str] = Counter()
    rungs: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for job, started_at, finished_at in ran:
        took_ms = finished_at - started_at
        lanes[job.lane] += took_ms
        if job.rung is not None and job.rung != ELASTIC:
            rungs[job.rung] += took_ms
        limits.update({key: took_ms for key, _ in rule_index.keys(job.task, job.tenant, job.limits)})
    return OfferedLoad(*({name: ms / span_ms for name, ms in counted.items()} for counted in (rungs, lanes, limits)))
