"""Runs a workload with the real policy and the memory store: one worker on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from headway.core.job import JobId
from headway.core.lease import Lease, Report
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.lanes import ShareClocks, plan
from headway.core.policy.retry import Returned, judge
from headway.core.snapshot import Snapshot
from headway.core.worker import ANY_TASK
from headway.policy_store.rule_documents import change_costs, write_rules
from headway.stores.base import Exchange, Heartbeat
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_claim_id, a_job, a_worker
from tests.simulation.workload import SLOTS, Work, expected_seconds

WORKER = "w1"
LONGEST_MS = 7 * 24 * 3_600_000  # The worker's lease outlasts every run.


def play(policy: Policy, works: Sequence[Work]) -> list[float]:
    """Run a workload under a policy. Return the seconds that each job waited, in the order of the workload."""
    return asyncio.run(Player(policy, works).play())


class Player:
    """One worker, which plans as a job source does: from the snapshot of its last exchange."""

    def __init__(self, policy: Policy, works: Sequence[Work]) -> None:
        self.policy = policy
        self._works = works
        self._expected = expected_seconds(works)
        self.clock = ManualClock()
        self._begins_at = self.clock()
        self.store = MemoryStore(clock=self.clock)
        self._clocks = ShareClocks()
        self._snapshot = Snapshot(self._begins_at)
        self._reserved = reserved_slots(policy, SLOTS, None)
        self.by_id: dict[JobId, Work] = {}
        self._running: list[tuple[int, int, Lease]] = []  # The first to end first.
        self._outside = 0  # How many of them are of lanes outside the reserve.
        self.waits: dict[int, float] = {}

    async def play(self) -> list[float]:
        await write_rules(self.store, self.policy)
        await change_costs(self.store, lambda _: {task: round(1e6 * cost) for task, cost in self._expected.items()})
        worker = a_worker(WORKER, slots=SLOTS, reserved=self._reserved, offers=(ANY_TASK,))
        await self.store.renew(Heartbeat(worker, LONGEST_MS, LONGEST_MS, register=True))
        coming = deque(self._works)
        while coming or self._running:
            arrives_at = self._at(coming[0].arrives) if coming else None
            if arrives_at is not None and (not self._running or arrives_at <= self._running[0][0]):
                self.clock.advance(ms=arrives_at - self.clock())
                await self.submit(coming.popleft())
                await self._exchange()
            else:
                ends_at, _, lease = heappop(self._running)
                self.clock.advance(ms=ends_at - self.clock())
                await self._exchange(self.end(lease))
        return [self.waits[work.number] for work in self._works]

    async def submit(self, work: Work) -> None:
        job = a_job(task=work.task, lane=work.lane, tenant=work.tenant)
        self.by_id[job.job_id] = work
        await self.store.submit([job])

    async def _exchange(self, *finished: Report) -> None:
        """Report ended jobs and claim for the free slots. Claim again if the snapshot has a new class."""
        while (free := SLOTS - len(self._running)) > 0:
            chosen = plan(
                self._snapshot,
                free=free,
                free_below=SLOTS - self._reserved - self._outside,
                offers=frozenset(),
                policy=self.policy,
                clocks=self._clocks,
            )
            answer = await self.store.exchange(
                Exchange(WORKER, a_claim_id(), finished, chosen, want_snapshot=True),
            )
            assert answer.snapshot is not None
            assert not answer.refused
            for lease in answer.leases:
                self.start(lease)
            known = {view.key for view in self._snapshot.classes}
            self._snapshot = answer.snapshot
            finished = ()
            if all(view.key in known for view in self._snapshot.classes):
                return

    def start(self, lease: Lease) -> None:
        work = self.by_id[lease.job_id]
        self._outside += lease.lane not in self.policy.reserve.lanes
        self._clocks.charge(self.policy, lease.class_key, self._expected[work.task])
        self.waits[work.number] = (self.clock() - self._at(work.arrives)) / 1_000
        heappush(self._running, (self.clock() + max(1, round(1_000 * work.seconds)), lease.seq, lease))

    def end(self, lease: Lease) -> Report:
        work = self.by_id[lease.job_id]
        self._outside -= lease.lane not in self.policy.reserve.lanes
        self._clocks.correct(self.policy, lease.class_key, work.seconds - self._expected[work.task])
        return judge(Returned(None), lease, self.policy)

    def _at(self, moment: float) -> int:
        return self._begins_at + round(1_000 * moment)
