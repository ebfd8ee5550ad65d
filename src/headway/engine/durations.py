"""How long jobs take: learned from those that ended, shared through the store, used as their expected cost."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.policy.rules import SECOND_US, limit_key
from headway.engine.rules import change_costs, read_costs
from headway.stores.base import Store

REMEMBERED = 50  # Jobs that what is known so far counts for.
WORTH_TELLING = 0.1  # A cost that has moved by less is not written.
TENANT_JOBS = 5  # Jobs of a tenant before it gets a cost of its own.
TENANT_PARTS = 2.0  # How many times dearer, or cheaper, its jobs must be for that.
TENANTS_MAX = 1_000  # Costs of tenants kept in the store.
NOTED_MAX = 10_000  # Tenants noted between two publications.

Noted = dict[str, tuple[int, float]]  # By name: how many jobs, and their seconds together.


class Durations:
    """Notes what each job took, and from time to time makes it known to all. A decayed mean for each task, and for
    tenants whose jobs of a task are far from it.
    """

    def __init__(self) -> None:
        self._tasks: Noted = {}
        self._tenants: dict[tuple[str, str], tuple[int, float]] = {}
        self._known_us: Mapping[str, int] = {}

    def expected(self, task: str) -> float:
        """Give the seconds that a job of this task is expected to take; 1 until something is known."""
        return self._known_us.get(task, SECOND_US) / SECOND_US

    def note(self, task: str, tenant: str | None, seconds: float) -> None:
        count, total = self._tasks.get(task, (0, 0.0))
        self._tasks[task] = (count + 1, total + seconds)
        if tenant is not None and len(self._tenants) < NOTED_MAX:
            count, total = self._tenants.get((task, tenant), (0, 0.0))
            self._tenants[task, tenant] = (count + 1, total + seconds)

    async def publish(self, store: Store) -> None:
        """Tell the store what was learned since the last time, and learn what others told it."""
        tasks, self._tasks = self._tasks, {}
        tenants = self._tenants
        # Those of whom too little is known yet are kept until more is.
        self._tenants = {key: noted for key, noted in tenants.items() if noted[0] < TENANT_JOBS}
        if tasks:
            await change_costs(store, lambda known: learn(known, tasks, tenants))
        self._known_us = await read_costs(store)


def learn(
    known_us: Mapping[str, int], tasks: Noted, tenants: Mapping[tuple[str, str], tuple[int, float]]
) -> dict[str, int]:
    """Give the costs that follow from what was known and what was noted since."""
    costs = dict(known_us)
    for task, (count, total) in tasks.items():
        _move(costs, task, count, total)
    for (task, tenant), (count, total) in tenants.items():
        key = limit_key(task, tenant)
        if count < TENANT_JOBS:
            continue
        _move(costs, key, count, total)
        ratio = costs[key] / costs[task]
        if 1 / TENANT_PARTS < ratio < TENANT_PARTS:
            del costs[key]
    extra = [key for key in costs if "=" in key]
    for key in extra[: max(0, len(extra) - TENANTS_MAX)]:
        del costs[key]
    return costs


def _move(costs: dict[str, int], key: str, count: int, total: float) -> None:
    new_us = total / count * SECOND_US
    old_us = costs.get(key)
    if old_us is not None:
        new_us = old_us + (new_us - old_us) * count / (count + REMEMBERED)
        if abs(new_us - old_us) < WORTH_TELLING * old_us:
            return
    costs[key] = max(1, round(new_us))
