"""Expected costs: the run times of finished jobs, shared through the store."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from headway.core.lease import Lease
from headway.core.policy.enforced import SECOND_US, limit_key
from headway.estimates.history import DurationHistory
from headway.policy_store.rule_documents import change_costs, read_costs
from headway.stores.base import Store

WEIGHT_JOBS = 50  # Jobs that the known cost counts for, so that a change shows within some dozens of jobs.
LEAST_CHANGE = 0.1  # The least relative change of a cost that is written, to spare the store writes.
TENANT_JOBS = 5  # Jobs of a tenant before it gets a cost of its own: fewer would follow chance.
TENANT_PARTS = 2.0  # How many times longer, or shorter, a tenant's jobs must run for a cost of its own.
TENANTS_MAX = 1_000  # Costs of tenants in the store, to bound the document.
PENDING_TENANTS_MAX = 10_000  # Tenants recorded between two publications, to bound memory.

_NAMES = itemgetter(*map(Lease._fields.index, ("task", "tenant")))
_NONE = (0, 0.0)

CostSums = dict[str, tuple[int, float]]  # By name: how many jobs, and their seconds together.


class TaskCosts:
    """Collects the run time of each job, and shares the means through the store at intervals.

    It keeps a decayed mean for each task, and for tenants whose jobs of a task are far from that mean.
    """

    def __init__(self) -> None:
        self._tasks: CostSums = {}
        self._tenants = OrderedDict[tuple[str, str], tuple[int, float]]()  # A dict takes long to find its first key.
        self._known_us: Mapping[str, int] = {}
        self.due = asyncio.Event()  # Set when run times should be published earlier than planned.
        self._lessons = DurationHistory(wake=self.due.set)
        self.noted = False  # Whether any job has ended since the last publication.

    def expected(self, task: str) -> float:
        """Return the expected seconds of a job of this task; 1 until a job has finished."""
        return self._known_us.get(task, SECOND_US) / SECOND_US

    def ended(self, runs: Sequence[tuple[Lease, float]]) -> None:
        """Record for how many seconds jobs have run."""
        self.note([(*_NAMES(lease), seconds) for lease, seconds in runs])
        self._lessons.note(runs)

    def note(self, runs: Iterable[tuple[str, str | None, float]]) -> None:
        """Record for how many seconds jobs of a task, and perhaps of a tenant, have run."""
        tasks, tenants = self._tasks, self._tenants
        last, count, total = None, 0, 0.0  # Of the last task: most jobs of a batch have one.
        for task, tenant, seconds in runs:
            if task != last:
                if last is not None:
                    tasks[last] = (count, total)
                last, (count, total) = task, tasks.get(task, _NONE)
            count, total = count + 1, total + seconds
            if tenant is not None:
                key = (task, tenant)
                known, sum_ = tenants.pop(key, _NONE)
                tenants[key] = (known + 1, sum_ + seconds)
                if len(tenants) > PENDING_TENANTS_MAX:  # Drop the tenant whose last job is the oldest.
                    tenants.popitem(last=False)
        if last is not None:
            tasks[last] = (count, total)
            self.noted = True

    async def publish(self, store: Store) -> None:
        """Write costs that have changed enough to the store, and read those that other processes wrote."""
        self.noted = False
        known = await read_costs(store)
        tasks = {task: noted for task, noted in self._tasks.items() if is_worth_writing(known.get(task), noted)}
        tenants = {key: noted for key, noted in self._tenants.items() if noted[0] >= TENANT_JOBS}
        # The rest waits until more jobs have finished.
        self._tasks = {task: noted for task, noted in self._tasks.items() if task not in tasks}
        self._tenants = OrderedDict((key, noted) for key, noted in self._tenants.items() if key not in tenants)
        if tasks or tenants:
            await change_costs(store, lambda costs: learn(costs, tasks, tenants))
            known = await read_costs(store)
        self._known_us = known
        await self._lessons.publish(store)

    async def publish_first(self, store: Store) -> float | None:
        """Publish the run times of tasks of which little is known. Return the seconds until the next time, if any."""
        if self._lessons.due_in <= 0:
            await self.publish(store)
        return None if math.isinf(self._lessons.due_in) else self._lessons.due_in


def is_worth_writing(old_us: int | None, noted: tuple[int, float]) -> bool:
    """Return whether recorded jobs change an expected cost enough to write it."""
    return old_us is None or abs(_moved(old_us, noted) - old_us) >= LEAST_CHANGE * old_us


def learn(
    known_us: Mapping[str, int], tasks: CostSums, tenants: Mapping[tuple[str, str], tuple[int, float]]
) -> dict[str, int]:
    """Return the costs that follow from the known ones and the recorded jobs."""
    costs = dict(known_us)
    for task, noted in tasks.items():
        costs[task] = _moved(costs.get(task), noted)
    for (task, tenant), noted in tenants.items():
        key = limit_key(task, tenant)
        costs[key] = _moved(costs.get(key), noted)
        ratio = costs[key] / costs.get(task, SECOND_US)
        if 1 / TENANT_PARTS < ratio < TENANT_PARTS:
            del costs[key]
    extra = [key for key in costs if "=" in key]
    for key in extra[: max(0, len(extra) - TENANTS_MAX)]:
        del costs[key]
    return costs


def _moved(old_us: int | None, noted: tuple[int, float]) -> int:
    """Return the decayed mean, in which the known cost counts for ``WEIGHT_JOBS`` jobs."""
    count, total = noted
    new_us = total / count * SECOND_US
    if old_us is not None:
        new_us = old_us + (new_us - old_us) * count / (count + WEIGHT_JOBS)
    return max(1, round(new_us))
