"""Bringing back jobs whose worker is gone: one path for reapers and parents."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from headway.core.lease import Lease
from headway.core.policy.document import Policy
from headway.core.policy.retry import Crashed, Ending, judge
from headway.stores.base import Exchange, Store

BATCH = 500


async def end_leases(
    store: Store, leases: Sequence[Lease], policy: Policy, ending: Callable[[Lease], Ending], *, expired_only: bool
) -> int:
    """End leases on behalf of a worker that cannot. Gives how many ended by this call."""
    if not leases:
        return 0
    reports = [
        judge(ending(lease), lease, policy, chance=int.from_bytes(os.urandom(2)) / 65_536)._replace(
            expired_only=expired_only
        )
        for lease in leases
    ]
    answer = await store.exchange(Exchange(None, finished=reports))
    return len(reports) - len(answer.refused)


async def overdue(store: Store) -> list[Lease]:
    """Read a bounded batch of the leases whose workers let their deadline pass."""
    return await store.leases(limit=BATCH)


async def reap(store: Store, leases: Sequence[Lease], policy: Policy) -> int:
    """Return the jobs of leases that are overdue, unless their workers have renewed meanwhile. Safe to do twice."""
    return await end_leases(
        store,
        leases,
        policy,
        lambda lease: Crashed(f"worker {lease.worker_id} stopped renewing its leases"),
        expired_only=True,
    )


async def end_worker(store: Store, worker_id: str, policy: Policy, ending: Callable[[Lease], Ending]) -> int:
    """End all leases of a worker that is known to be gone, and mark it dead."""
    await store.bury(worker_id)
    ended = 0
    while leases := await store.leases(worker_id=worker_id, limit=BATCH):
        done = await end_leases(store, leases, policy, ending, expired_only=False)
        ended += done
        if not done:
            break
    return ended
