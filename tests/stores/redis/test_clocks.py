"""Clocks that disagree by hours: at worst jobs wait longer, but no job is lost and no count is wrong."""

from __future__ import annotations

import random

import pytest

from headway.core.errors import JobError
from headway.core.job import JobId, State
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Raised
from headway.testing.clock import ManualClock
from tests.conformance.builders import LEASE_MS, a_job, beat, claim, end, reap, register, submit
from tests.servers import Valkey
from tests.stores.redis.conftest import OpenStore, drain, recount

HOUR = 3_600_000
DAY = 24 * HOUR


class SteppedClock(ManualClock):
    """A clock that a test can set forwards or back."""

    def jump(self, ms: int) -> None:
        self.now_at += ms


@pytest.mark.parametrize("seed", range(4))
async def test_two_clocks_that_jump_against_each_other(server: Valkey, open_url: OpenStore, seed: int) -> None:
    # C1 to C3: I1, I3, I5
    chance = random.Random(seed)
    clocks = [SteppedClock(), SteppedClock()]
    stores = [await open_url(server.url, clock=clock) for clock in clocks]
    workers = [await register(store, f"w{n}", slots=8) for n, store in enumerate(stores)]
    held: list[list[Lease]] = [[], []]
    submitted: list[JobId] = []
    ended: list[JobId] = []
    for step in range(150):
        which = chance.randrange(2)
        store, clock, worker = stores[which], clocks[which], workers[which]
        match chance.choice(["submit", "submit", "claim", "claim", "end", "fail", "beat", "reap", "jump", "prune"]):
            case "submit":
                delay_ms = chance.choice([0, 0, 1_000, HOUR])
                submitted += await submit(store, *(a_job(delay_ms=delay_ms, max_retries=50) for _ in range(2)))
            case "claim":
                held[which] += await claim(store, worker.worker_id, free=3)
            case "end" if held[which]:
                lease = held[which].pop()
                if await end(store, lease) is ReportStatus.OK:
                    ended.append(lease.job_id)
            case "fail" if held[which]:
                await end(store, held[which].pop(), Raised(JobError("ValueError", "again")))
            case "beat":
                renewed = await beat(store, worker, held=held[which])
                if renewed.state != "active":
                    await register(store, worker.worker_id, slots=8)
                held[which] = [lease for lease in held[which] if lease.job_id not in renewed.lost]
            case "reap":
                await reap(store)
            case "prune":
                await store.prune(BUILT_IN.keep)
            case "jump":
                clock.jump(chance.choice([-3 * HOUR, -HOUR, -1_000, 1_000, LEASE_MS, HOUR, 5 * HOUR]))
                stores[which] = await open_url(server.url, clock=clock)  # One that has seen no later moment.
        if step % 10 == 0:
            await recount(store)
    store = stores[0]
    clocks[0].now_at = max(clock() for clock in clocks) + 10 * DAY  # Now everybody is dead and everything due.
    await reap(store)
    while ran := await drain(store):
        ended += ran
        clocks[0].advance(ms=DAY)
    assert sorted(ended) == sorted(submitted), "a job was lost, or ended twice"
    kept = await recount(store)
    assert set(kept) <= {State.COMPLETED}
    totals = (await store.stats()).totals
    assert (totals["submitted"], totals["completed"]) == (len(submitted), len(submitted))


async def test_a_clock_set_back_does_not_turn_time_back(server: Valkey, open_url: OpenStore) -> None:
    clock = SteppedClock()
    store = await open_url(server.url, clock=clock)
    before = (await store.stats()).now_at
    clock.jump(-HOUR)
    assert before <= (await store.stats()).now_at <= before + 1_000
