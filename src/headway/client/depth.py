"""Counts waiting jobs, in total and per tenant, for policies that bound them."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headway.core.errors import QueueFull
from headway.core.job import NewJob
from headway.core.policy.document import Policy
from headway.stores.base import LaneStats, Store

COUNT_EVERY = 1.0  # Seconds between counts in the store. In between, the process adds the jobs that it submits itself.
TENANTS_KEPT = 10_000  # Tenants whose counts a process keeps, to bound its memory.


@dataclass(slots=True)
class _Count:
    waiting: int = 0
    counted_at: float = -math.inf

    async def refresh(self, read_stats: Callable[[], Awaitable[dict[str, LaneStats]]]) -> None:
        """Count again if the last count is older than ``COUNT_EVERY``."""
        asked = time.monotonic()
        if asked - self.counted_at > COUNT_EVERY:
            self.waiting = sum(lane.waiting for lane in (await read_stats()).values())
            self.counted_at = asked


class QueueDepth:
    """Counts waiting jobs, without those that other processes submitted within the last second.

    The queue may therefore exceed the policy's bound by the submits of one second. An exact count would slow down
    every submit, which costs more.
    """

    def __init__(self) -> None:
        self._all = _Count()
        self._tenants: OrderedDict[str, _Count] = OrderedDict()

    async def admit(self, store: Store, jobs: Sequence[NewJob], policy: Policy) -> None:
        """Add jobs to the counts, all or none. Raises ``QueueFull`` if the policy does not allow them."""
        for count, number in await self.check(store, jobs, policy):
            count.waiting += number

    async def check(self, store: Store, jobs: Sequence[NewJob], policy: Policy) -> list[tuple[_Count, int]]:
        """Return how many jobs to add to which counts. Raises ``QueueFull`` if the policy does not allow them."""
        admitted: list[tuple[_Count, int]] = []
        if policy.max_depth:

            async def read_stats() -> dict[str, LaneStats]:
                return (await store.stats()).lanes

            await self._all.refresh(read_stats)
            _check(self._all, len(jobs), policy.max_depth, None)
            admitted.append((self._all, len(jobs)))
        for tenant, number in Counter(job.tenant for job in jobs if job.tenant is not None).items():
            if most := policy.tenants.depth_of(tenant):
                count = self._of(tenant)
                await count.refresh(lambda tenant=tenant: store.waiting_of(tenant))  # type: ignore[misc]
                _check(count, number, most, tenant)
                admitted.append((count, number))
        return admitted

    def _of(self, tenant: str) -> _Count:
        count = self._tenants.pop(tenant, None) or _Count()
        self._tenants[tenant] = count
        if len(self._tenants) > TENANTS_KEPT:
            self._tenants.popitem(last=False)
        return count


def _check(count: _Count, jobs: int, most: int, tenant: str | None) -> None:
    if count.waiting + jobs > most:
        whose, key = ("jobs", "max_depth") if tenant is None else (f"jobs of tenant {tenant}", "tenants.max_depth")
        raise QueueFull(
            f"{count.waiting:,} {whose} wait, and the policy allows {most:,} ({key}); try again later",
            waiting=count.waiting,
            most=most,
            tenant=tenant,
        )
