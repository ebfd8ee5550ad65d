"""Workers with one of the example policies, on the memory store and a manual clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.job import JobId, NewJob
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.lanes import ShareClocks, plan
from headway.core.policy.retry import Ending, Returned, judge
from headway.policy_store.rule_documents import change_costs, write_rules
from headway.policy_store.versions import load_policy
from headway.stores.base import Exchange, Heartbeat
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_claim_id, a_worker

POLICIES = Path(__file__).parents[2] / "examples" / "policies"
LEASE_MS = 24 * 3_600_000


def example(name: str) -> Policy:
    """Return one of the example policies."""
    return load_policy(POLICIES / f"{name}.toml")


@dataclass
class _Member:
    """A worker: its slots, its share clocks, and its running jobs."""

    slots: int
    clocks: ShareClocks = field(default_factory=ShareClocks)
    running: list[Lease] = field(default_factory=list)


class Pool:
    """Workers that share a store. Each claims as a real worker does: it fills its slots by the plan."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self._members: dict[str, _Member] = {}
        self._seconds: dict[str, float] = {}

    @classmethod
    async def open(cls, policy: Policy, *, slots: int) -> Pool:
        """Apply a policy, and register a first worker."""
        pool = cls(policy)
        await write_rules(pool.store, policy)
        await pool.join("w1", slots=slots)
        return pool

    async def join(self, name: str, *, slots: int) -> None:
        self._members[name] = _Member(slots)
        worker = a_worker(name, slots=slots, reserved=reserved_slots(self.policy, slots, None))
        await self.store.renew(Heartbeat(worker, LEASE_MS, LEASE_MS, register=True))

    async def leave(self, name: str) -> None:
        await self.store.mark_dead(name)
        del self._members[name]

    async def expect(self, **seconds: float) -> None:
        """Publish the run times of some tasks."""
        self._seconds |= seconds
        await change_costs(self.store, lambda _: {task: round(1e6 * cost) for task, cost in seconds.items()})

    async def submit(self, *jobs: NewJob) -> list[JobId]:
        return [answer.job_id for answer in await self.store.submit(jobs)]

    async def claim(self, name: str = "w1") -> list[Lease]:
        """Fill the free slots of a worker. Each claim is charged one second, or the published time of its task."""
        member = self._members[name]
        reserve = self.policy.reserve
        held = [lease for lease in member.running if reserve.rule == "leave_free" or lease.lane not in reserve.lanes]
        free = member.slots - len(member.running)
        chosen = plan(
            await self.store.snapshot(),
            free=free,
            free_below=member.slots - reserved_slots(self.policy, member.slots, None) - len(held),
            offers=frozenset(),
            policy=self.policy,
            clocks=member.clocks,
        )
        answer = await self.store.exchange(Exchange(name, a_claim_id(), (), chosen))
        for lease in answer.leases:
            member.clocks.charge(self.policy, lease.class_key, self._seconds.get(lease.task, 1.0))
        member.running += answer.leases
        return list(answer.leases)

    async def end(self, *leases: Lease, ending: Ending | None = None) -> None:
        """End some jobs. By default they have returned."""
        reports = [judge(ending or Returned(None), lease, self.policy) for lease in leases]
        answer = await self.store.exchange(Exchange(None, finished=reports))
        assert not answer.refused
        for member in self._members.values():
            member.running = [lease for lease in member.running if lease not in leases]

    async def report_again(self, lease: Lease) -> ReportStatus:
        """Report an ended job a second time."""
        answer = await self.store.exchange(Exchange(None, finished=[judge(Returned(None), lease, self.policy)]))
        return dict(answer.refused).get(lease.job_id, ReportStatus.OK)

    async def run(self, turns: int, name: str = "w1", *, seconds: float = 1) -> list[Lease]:
        """Claim this many times, and end all running jobs after each claim. Return the claimed jobs in order."""
        claimed: list[Lease] = []
        for _ in range(turns):
            claimed += await self.claim(name)
            self.clock.advance(seconds)
            await self.end(*self.running(name))
        return claimed

    def running(self, name: str | None = None) -> list[Lease]:
        """Return the running jobs of one worker or of all."""
        members = self._members.values() if name is None else [self._members[name]]
        return [lease for member in members for lease in member.running]

    def count(self, lane: str) -> int:
        """Return the number of running jobs of a lane."""
        return Counter(lease.lane for lease in self.running())[lane]


def ids(leases: list[Lease]) -> list[JobId]:
    return [lease.job_id for lease in leases]
