"""Random histories, each played on a store and on a fresh MemoryStore. All replies must agree.

After every step the test reads both stores as a whole and compares them. It also checks the promises that need no
second store: no job is lost, an ended job stays ended, moves are legal, epochs grow, limits hold, and counts equal a
recount.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import seed as start_at
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headway.core.diagnostics import JobDiagnostics
from headway.core.errors import IdempotencyConflict, JobError
from headway.core.job import MOVES, JobId, JobRecord, NewJob, RetryRule, State, SubmitReply
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import BUILT_IN, Keep, Ladder, LimitRule, Reserve, Rung
from headway.core.policy.enforced import EnforcedRules, PauseSet, RuleIndex
from headway.core.policy.lanes import plan
from headway.core.policy.retry import (
    Crashed,
    Ending,
    Raised,
    Released,
    Returned,
    Snoozed,
    Stopped,
    TimedOut,
    Unknown,
    judge,
)
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerInfo, WorkerState, serves
from headway.stores.base import RULES, Exchange, ExchangeReply, Heartbeat, JobQuery, LaneStats, Stats, Store
from headway.stores.memory import MemoryStore
from headway.stores.rule_codec import rules_body
from headway.testing.clock import ManualClock
from tests.conformance.builders import BOOM, a_job, a_worker, an_id
from tests.conftest import HASTY_STORES

T = TypeVar("T")

WORKERS = {
    "w1": a_worker("w1", slots=2, reserved=1),
    "w2": a_worker("w2", slots=3, reserved=0, offers=("gpu",)),
    "w3": a_worker("w3", slots=1, reserved=0, offers=("arm", "gpu", "task:resize")),
}
LEASE_MS = 5_000
EVERYTHING = JobQuery(limit=100_000)

ENDINGS: list[Ending] = [
    Returned(b"\x00\xff"),
    Returned(None, "the result is too large"),
    Raised(BOOM),
    Raised(BOOM, after_ms=0),
    Raised(JobError("ValueError", "bad", retriable=False)),
    Snoozed(2_000),
    Snoozed(0),
    TimedOut(JobError("TimedOut", "too slow")),
    TimedOut(JobError("TimedOut", "too slow"), b"half"),
    Stopped(),
    Crashed("signal 9"),
    Released(),
    Unknown(),
]


class JobDraft(NamedTuple):
    """One job of a submit, as a strategy draws it. ``repeat`` reuses the id of an earlier job."""

    repeat: int | None
    task: str
    payload: bytes
    lane: str
    needs: tuple[str, ...]
    rung: str | None
    max_retries: int
    delay_ms: int
    expires_ms: int | None
    idempotency_key: str | None
    unique_key: str | None
    tenant: str | None
    persist: bool
    limits: tuple[str, ...]
    on_stop: str = "fail"


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([usual, usual, usual, *others])


numbers = st.integers(0, 30)  # An index into the leases, jobs or claims so far, modulo their number.
worker_ids = st.sampled_from(sorted(WORKERS))
endings = st.sampled_from(ENDINGS)
ended = st.lists(st.tuples(numbers, endings), max_size=3)
job_drafts = st.builds(
    JobDraft,
    repeat=mostly(None, 0, 1),
    task=mostly("export", "resize"),
    payload=mostly(b"1", b"\x002\xff"),
    lane=st.sampled_from(["high", "medium", "low"]),
    needs=mostly((), ("gpu",), ("gpu", "arm")),
    rung=mostly(None, "fast", "slow", "default", "interactive"),
    max_retries=st.sampled_from([0, 1, 3]),
    delay_ms=mostly(0, 1_000, 4_000),
    expires_ms=mostly(None, 1_500, 6_000),
    idempotency_key=mostly(None, "k1", "k2"),
    unique_key=mostly(None, "u1", "u2"),
    tenant=mostly(None, "acme", "zeta"),
    persist=mostly(True, False),
    limits=mostly((), ("account=7",), ("account=7", "host=x")),
    on_stop=mostly("fail", "retry_longer", "partial"),
)
JUDGING = replace(BUILT_IN, ladder=Ladder((Rung("fast", 3_000), Rung("slow", 30_000))))

# Rules that an operator may apply at any time, and policies that make plans.
GOVERNED = {
    "nothing": EnforcedRules(),
    "limits": EnforcedRules(
        limits={
            "account": LimitRule(concurrency=1, by="account_id"),
            "host": LimitRule(concurrency=2, by="host"),
            "each": LimitRule(concurrency=1, by="tenant", tasks=("exp*",)),
        }
    ),
    "rates": EnforcedRules(
        limits={
            "often": LimitRule(count=2, period_ms=1_000, tasks=("resize",)),
            "account": LimitRule(concurrency=2, count=3, period_ms=2_000, burst=2, by="account_id"),
        }
    ),
    "ladder": EnforcedRules(rungs=(Rung("fast", 3_000), Rung("slow", 30_000, percent=34))),
    "narrow": EnforcedRules(rungs=(Rung("fast", 3_000, limit=2), Rung("slow", 30_000, limit=1))),
    "pool": EnforcedRules(pool_reserve=Reserve(frozenset({"high"}), 3, "pool")),
    "free": EnforcedRules(pool_reserve=Reserve(frozenset({"high"}), 2, "pool", "leave_free")),
    "weights": EnforcedRules(
        weights={"acme": 3}, default_weight=0.5, costs_us={"export": 20_000_000, "resize=zeta": 7}
    ),
}
PAUSES = {
    "nothing": PauseSet(),
    "everything": PauseSet(everything=True),
    "low": PauseSet(lanes=("low",)),
    "export": PauseSet(tasks=("export",)),
    "acme": PauseSet(tenants=("acme",)),
}
POLICIES = {
    "built in": BUILT_IN,
    "hasty": replace(
        BUILT_IN, lanes={name: replace(lane, promote_after_ms=(500, 1_000)) for name, lane in BUILT_IN.lanes.items()}
    ),
    "absolute": replace(
        BUILT_IN,
        promotion="absolute",
        lanes={name: replace(lane, promote_after_ms=(500, 1_000)) for name, lane in BUILT_IN.lanes.items()},
    ),
}


class StoreHistory(RuleBasedStateMachine):
    """A store and its oracle, the facts that a caller of both remembers, and the steps of all histories."""

    make: ClassVar[Callable[[Path, str, ManualClock], Store]]
    same_numbers: ClassVar[bool] = True  # Whether both stores use up the same sequence numbers.

    @initialize(scene=st.sampled_from(["any", "any", "lanes", "limits", "rates", "tenants", "ladder", "narrow"]))
    def open(self, scene: str) -> None:
        self.scene = scene
        self.folder = Path(tempfile.mkdtemp(prefix="headway-history-"))
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store: Store = type(self).make(self.folder, "default", self.clock)
        self.oracle: Store = MemoryStore(clock=self.clock)
        self.runner.run(self.store.open())
        for worker in WORKERS.values():
            self._renew(Heartbeat(worker, LEASE_MS, 1_000, register=True))
        self.governed, self.paused = EnforcedRules(), PauseSet()  # In force.
        self.jobs: list[NewJob] = []  # As submitted, in order.
        self.leases: list[tuple[Lease, Lease]] = []  # All leases so far: the store's and the oracle's.
        self.asked = 0
        self.claims: dict[tuple[str, str | None], bytes] = {}  # Claims that a worker may repeat.
        self.known: dict[JobId, JobRecord] = {}  # As last seen.
        self.acknowledged: set[JobId] = set()
        self.grants: Counter[JobId] = Counter()
        self.totals: Counter[str] = Counter()
        self.transient: Counter[str] = Counter()  # Waiting transient jobs by lane.
        self.may_move: set[JobId] = set()  # Ended jobs that this step may move: an operator's retry named them.
        self.may_go = False  # Whether this step may remove ended jobs.
        if scene in GOVERNED:
            self.govern(scene)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.store.close())
            self.runner.close()
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------------ the steps

    @rule(batch=st.lists(job_drafts, min_size=1, max_size=3))
    def submit(self, batch: list[JobDraft]) -> None:
        jobs = [self._new_job(one, len(self.jobs) + index) for index, one in enumerate(batch)]
        first, second = self._both(lambda store: _submitted(store, jobs))
        assert first == second
        self.jobs += jobs
        if isinstance(first, int):
            return
        for job, answer in zip(jobs, first, strict=True):
            if answer.deduplicated:
                continue
            assert answer.job_id == job.job_id
            if not job.persist and job.job_id not in self.acknowledged:
                self.transient[job.lane] += 1
                self.totals["submitted"] += 1
            elif job.job_id not in self.known and job.job_id not in self.acknowledged:
                self.totals["submitted"] += 1
            if job.persist:
                self.acknowledged.add(job.job_id)

    @rule(
        worker_id=worker_ids,
        free=st.integers(0, 4),
        free_below=st.integers(0, 4),
        finished=ended,
        again=mostly(None, "given", "empty"),
        wait=st.booleans(),
        by=st.sampled_from(sorted(POLICIES)),
    )
    def exchange(
        self,
        worker_id: str,
        free: int,
        free_below: int,
        finished: list[tuple[int, Ending]],
        again: str | None,
        wait: bool,
        by: str,
    ) -> None:
        claim_id = self.claims.get((worker_id, again))
        if claim_id is None:
            self.asked += 1
            claim_id = self.asked.to_bytes(16, "big")
        offers = frozenset(WORKERS[worker_id].offers)
        pairs = [(self._lease(number), ending) for number, ending in finished if self.leases]
        ends = [judge(ending, first, JUDGING, chance=0.5) for (first, _), ending in pairs]
        oracle_ends = [judge(ending, second, JUDGING, chance=0.5) for (_, second), ending in pairs]
        assert [end._replace(seq=0) for end in ends] == [end._replace(seq=0) for end in oracle_ends]

        async def play(store: Store) -> ExchangeReply:
            seen = await store.snapshot()
            chosen = plan(seen, free=free, free_below=free_below, offers=offers, policy=POLICIES[by])
            reports = ends if store is self.store else oracle_ends
            return await store.exchange(Exchange(worker_id, claim_id, reports, chosen, wait=wait, want_snapshot=True))

        running = sum(job.worker_id == worker_id for job in self._executing())
        first, second = self._both(play)
        assert _plain_exchanged(first, self.same_numbers) == _plain_exchanged(second, self.same_numbers)
        # A worker may repeat its last claim with leases, or one without. The token of any other claim is outdated.
        self.claims.pop((worker_id, "empty"), None)
        self.claims[worker_id, "given" if first.leases else "empty"] = claim_id
        seen = {(old.job_id, old.token, old.epoch) for old, _ in self.leases}
        new = [
            (one, other)
            for one, other in zip(first.leases, second.leases, strict=True)
            if not one.token or (one.job_id, one.token, one.epoch) not in seen
        ]
        self._check_grant([one for one, _ in new], worker_id, free, free_below, running, bool(ends))
        self._check_caps([one for one, _ in new])
        self.leases += [(one, other) for one, other in new if one.token]

    @rule(
        batch=st.lists(job_drafts, max_size=3),
        worker_id=worker_ids,
        ends=st.lists(mostly(Returned(b"1"), *ENDINGS), max_size=3),
        by=st.sampled_from(sorted(POLICIES)),
    )
    def work(self, batch: list[JobDraft], worker_id: str, ends: list[Ending], by: str) -> None:
        """Play a usual turn: submit jobs, let a worker report its oldest leases, and claim for it."""
        if batch:
            self.submit(batch)
            self.check()
        held = {(job.job_id, job.epoch) for job in self._executing() if job.worker_id == worker_id}
        last = len(self.leases) - 1
        mine = [last - i for i, (lease, _) in enumerate(self.leases) if (lease.job_id, lease.epoch) in held]
        finished = list(zip(mine, ends, strict=False))
        self.exchange(worker_id, free=4, free_below=4, finished=finished, again=None, wait=False, by=by)

    @rule(name=st.sampled_from(sorted(GOVERNED)))
    def govern(self, name: str) -> None:
        """Apply other rules, whatever jobs wait and run."""
        self.governed = GOVERNED[name]
        self._same(lambda store: store.write(RULES, "policy", rules_body(self.governed)))

    @rule(number=numbers, ending=endings)
    def end(self, number: int, ending: Ending) -> None:
        """Report on any lease: held, ended or lost."""
        if self.leases:
            self._report(self._lease(number), ending)

    @rule(worker_id=worker_ids, lease_ms=st.sampled_from([LEASE_MS, 500]))
    def register(self, worker_id: str, lease_ms: int) -> None:
        for kind in ("given", "empty"):  # A store may have removed a worker that was long dead, with its claims.
            self.claims.pop((worker_id, kind), None)
        self._renew(Heartbeat(WORKERS[worker_id], lease_ms, 1_000, self._held(worker_id), register=True))

    @rule(worker_id=worker_ids, named=st.integers(0, 7), strays=st.lists(numbers, max_size=2), confirm=st.booleans())
    def renew(self, worker_id: str, named: int, strays: list[int], confirm: bool) -> None:
        """Renew some of the held leases, and some that belong to another worker or have ended."""
        held = [pair for index, pair in enumerate(self._held(worker_id)) if named >> index & 1]
        for number in strays if self.leases else ():
            stray, _ = self._lease(number)
            held.append((stray.job_id, stray.token))
        self._renew(Heartbeat(WORKERS[worker_id], LEASE_MS, 1_000 if confirm else 0, held))

    @rule(late_ms=mostly(0, LEASE_MS))
    def reap(self, late_ms: int) -> None:
        """End the leases of workers past their deadline. Workers may renew between the read and the report."""

        async def play(store: Store) -> list[tuple[JobId, ReportStatus]]:
            reports = [
                judge(Crashed("lease expired"), lease, BUILT_IN)._replace(expired_only=True)
                for lease in await store.leases()
            ]
            if late_ms:
                for worker in WORKERS.values():
                    await store.renew(Heartbeat(worker, late_ms, 1_000_000))
            return list((await store.exchange(Exchange(None, finished=reports))).refused)

        self._same(play)

    @rule(picked=st.lists(numbers, min_size=1, max_size=3))
    def cancel(self, picked: list[int]) -> None:
        self._same(lambda store: store.cancel(self._ids(picked), "not wanted"))

    @rule(picked=st.lists(numbers, min_size=1, max_size=3))
    def retry(self, picked: list[int]) -> None:
        self.may_move = set(self._ids(picked))
        self._same(lambda store: store.retry(self._ids(picked)))

    @rule(keep_ms=st.sampled_from([1, 2_000, 10_000]))
    def prune(self, keep_ms: int) -> None:
        self.may_go = True
        self._same(lambda store: store.prune(Keep(keep_ms, 2 * keep_ms, keep_ms, 3 * keep_ms)))

    @rule(states=st.sets(st.sampled_from(list(State))), picked=st.none() | st.lists(numbers, max_size=3))
    def purge(self, states: set[State], picked: list[int] | None) -> None:
        self.may_go = True
        job_ids = None if picked is None else self._ids(picked)
        self._same(lambda store: store.purge(sorted(states), job_ids))

    @rule(ms=st.sampled_from([1, 500, 1_000, 1_000, 2_000, LEASE_MS, 61_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    # ------------------------------------------------------------------ what holds after each of them

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "runner"):
            return
        seen, oracle_seen = self._both(lambda store: _read_contents(store, self.same_numbers))
        assert not list(_differences(seen, oracle_seen))
        jobs = seen.jobs
        self._check_no_loss(jobs)
        for job_id, job in jobs.items():
            self._check_move(self.known.get(job_id), job)
        self._check_limits(jobs)
        self._check_counts(jobs, seen.stats, seen.waiting)
        self._check_more(jobs)
        self.known, self.may_move, self.may_go = jobs, set(), False

    def _check_more(self, jobs: dict[JobId, JobRecord]) -> None:
        """Check additional promises of one kind of history, before the jobs read are remembered."""

    def _check_no_loss(self, jobs: dict[JobId, JobRecord]) -> None:
        """I1: an acknowledged job exists until it has ended and its removal was requested."""
        for job_id in self.acknowledged - jobs.keys():
            assert self.may_go, f"{job_id} is lost"
            assert self.known[job_id].state.ended
            del self.grants[job_id]  # A new job may reuse the id, and was never claimed.
        self.acknowledged &= jobs.keys()
        assert self.acknowledged == jobs.keys()

    def _check_move(self, before: JobRecord | None, after: JobRecord) -> None:
        """I2, I3, I4, I9: an ended job stays ended, moves are legal, claims raise epochs, budgets hold."""
        assert after.epoch == self.grants[after.job_id]
        assert after.attempts <= min(after.epoch, after.max_retries + 1)
        assert after.crashes <= BUILT_IN.crash_limit
        assert (after.finished_at is not None) == after.state.ended
        assert (after.worker_id is not None) or after.state is not State.EXECUTING
        if before is None:
            assert after.state is State.QUEUED
            return
        if before.state.ended and before.job_id not in self.may_move:
            assert replace(after, seen_at=0) == replace(before, seen_at=0)
            return
        assert after.epoch - before.epoch in (0, 1)
        assert after.history[: len(before.history)] == before.history
        reached = {before.state} | MOVES[before.state]
        if before.state is State.EXECUTING:
            reached |= MOVES[State.QUEUED]  # One exchange may end a lease and claim the job again.
        assert after.state in reached
        if before.state is after.state is State.EXECUTING and before.epoch == after.epoch:
            assert (before.started_at, before.worker_id) == (after.started_at, after.worker_id)

    def _check_limits(self, jobs: dict[JobId, JobRecord]) -> None:
        """I6: no worker holds more leases than it has slots, and no two live jobs share a unique key."""
        running = Counter(job.worker_id for job in jobs.values() if job.state is State.EXECUTING)
        for worker_id, held in running.items():
            assert held <= WORKERS[worker_id or ""].slots
        live = Counter(job.unique_key for job in jobs.values() if job.unique_key and not job.state.ended)
        assert all(holders == 1 for holders in live.values())

    def _check_caps(self, granted: Sequence[Lease]) -> None:
        """I6 for limits, pauses and the ladder: a claim adds nothing beyond a cap."""
        rule_index = RuleIndex(replace(self.governed, paused=self.paused))
        jobs = self._both(all_jobs)[0]
        running = [job for job in jobs.values() if job.state is State.EXECUTING]
        counted: Counter[str] = Counter()
        for job in running:
            counted.update(key for key, _ in rule_index.keys(job.task, job.tenant, job.limits))
        slots = sum(worker.slots for worker in self._live())
        for lease in granted:
            assert not rule_index.lane_paused(lease.lane)
            assert lease.persist or lease.task not in self.paused.tasks
            if not lease.persist or lease.job_id not in jobs:
                continue
            for key, limit in rule_index.keys(lease.task, lease.tenant, jobs[lease.job_id].limits):
                assert limit.concurrency is None or counted[key] <= limit.concurrency
            names = [rung.name for rung in rule_index.ladder.rungs]
            if lease.assigned in names:
                counts = [sum(job.assigned == name for job in running) for name in names]
                for index in range(names.index(lease.assigned) + 1):
                    most = rule_index.ladder.rungs[index].most(slots)
                    assert most is None or sum(counts[index:]) <= most

    def _live(self) -> list[WorkerInfo]:
        stats = self._both(lambda store: store.stats())[0]
        return [worker for worker in stats.workers if worker.state is WorkerState.ACTIVE]

    def _check_counts(self, jobs: dict[JobId, JobRecord], stats: Stats, waiting: dict[str, int]) -> None:
        """I5: every count equals a recount."""
        lanes = {lane: LaneStats(waiting=count) for lane, count in self.transient.items() if count}
        for job in jobs.values():
            lane = lanes.get(job.lane, LaneStats())
            if job.state is State.EXECUTING:
                lanes[job.lane] = lane._replace(executing=lane.executing + 1)
            elif job.held:
                lanes[job.lane] = lane._replace(held=lane.held + 1)
            elif job.state is State.QUEUED and job.due_at is not None:
                lanes[job.lane] = lane._replace(delayed=lane.delayed + 1)
            elif job.state is State.QUEUED:
                lanes[job.lane] = lane._replace(waiting=lane.waiting + 1)
        assert {name: lane._replace(oldest_at=None) for name, lane in stats.lanes.items()} == lanes
        blocked = Counter(job.lane for job in jobs.values() if job.blocked_by is not None)
        for name, lane in lanes.items():  # Blocked jobs wait too, but cannot be claimed until their limit has room.
            assert lane.waiting - blocked[name] <= waiting.get(name, 0) <= lane.waiting
        running = Counter(job.worker_id for job in jobs.values() if job.state is State.EXECUTING)
        assert all(worker.running == running[worker.worker_id] for worker in stats.workers)
        bad = Counter(job.state.value for job in jobs.values() if job.state.ended and job.state is not State.COMPLETED)
        assert stats.kept == bad
        for what in ("submitted", "claimed"):
            assert stats.totals.get(what, 0) == self.totals[what]

    def _check_grant(
        self, leases: Sequence[Lease], worker_id: str, free: int, free_below: int, running: int, ended: bool
    ) -> None:
        """I6 at the claim: totals, slots, reserve and needs hold, and no delayed or expired job is leased."""
        offers = frozenset(WORKERS[worker_id].offers)
        assert len(leases) <= free
        assert sum(lease.lane not in BUILT_IN.reserve.lanes for lease in leases) <= free_below
        if not ended:
            assert sum(lease.persist for lease in leases) <= max(0, WORKERS[worker_id].slots - running)
        for lease in leases:
            assert serves(lease.needs, offers)
            self.totals["claimed"] += 1
            if not lease.persist:
                self.transient[lease.lane] -= 1
                continue
            self.grants[lease.job_id] += 1
            job = self.known[lease.job_id]
            assert job.due_at is None or job.due_at <= self.clock()
            assert job.expires_at is None or job.expires_at > self.clock()

    # ------------------------------------------------------------------ helpers

    def _both(self, verb: Callable[[Store], Awaitable[T]]) -> tuple[T, T]:
        async def play() -> tuple[T, T]:
            return await verb(self.store), await verb(self.oracle)

        return self.runner.run(play())

    def _same(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        first, second = self._both(verb)
        assert first == second
        return first

    def _new_job(self, one: JobDraft, number: int) -> NewJob:
        one = self._in_scene(one)
        earlier = None if one.repeat is None or one.repeat >= len(self.jobs) else self.jobs[-1 - one.repeat]
        return a_job(
            earlier.job_id if earlier else an_id(number),
            task=one.task,
            payload=one.payload,
            lane=one.lane,
            needs=one.needs,
            rung=one.rung if one.persist or one.rung != "interactive" else None,
            retry=None if one.on_stop == "fail" else RetryRule("policy", on_stop=one.on_stop),
            max_retries=one.max_retries,
            tenant=one.tenant,
            delay_ms=one.delay_ms if one.persist else 0,
            expires_ms=one.expires_ms if one.persist else None,
            idempotency_key=one.idempotency_key if one.persist else None,
            idempotency_ms=3_000,
            unique_key=one.unique_key if one.persist else None,
            persist=one.persist,
            limits=one.limits if one.persist else (),
        )

    def _in_scene(self, one: JobDraft) -> JobDraft:
        """Return the draft with the values of the scene, so that jobs share a class, limits, tenants or rungs."""
        if self.scene == "any":
            return one
        one = one._replace(needs=(), persist=True, delay_ms=0, unique_key=None, idempotency_key=None)
        one = one if self.scene == "lanes" else one._replace(lane="medium")
        tenant = one.tenant if self.scene in ("tenants", "limits") else None
        if self.scene == "tenants":
            tenant = tenant or "solo"
        limits = one.limits or ("account=8",) if self.scene in ("limits", "rates") else ()
        usual = {"ladder": "default", "narrow": "slow"}.get(self.scene)
        rung = (one.rung or usual) if usual else None
        return one._replace(tenant=tenant, limits=limits, rung=rung)

    def _lease(self, number: int) -> tuple[Lease, Lease]:
        return self.leases[-1 - number % len(self.leases)]

    def _ids(self, picked: list[int]) -> list[JobId]:
        return [self.jobs[-1 - number].job_id if number < len(self.jobs) else an_id(10**9) for number in picked]

    def _held(self, worker_id: str) -> list[tuple[JobId, bytes]]:
        held = self.runner.run(self.store.leases(worker_id=worker_id))
        return [(lease.job_id, lease.token) for lease in held]

    def _executing(self) -> list[JobRecord]:
        return [job for job in self.known.values() if job.state is State.EXECUTING]

    def _renew(self, beat: Heartbeat) -> None:
        self._same(lambda store: store.renew(beat))

    def _report(self, pair: tuple[Lease, Lease], ending: Ending) -> ReportStatus:
        async def play(store: Store) -> list[tuple[JobId, ReportStatus]]:
            lease = pair[0] if store is self.store else pair[1]
            given = judge(ending, lease, JUDGING, chance=0.5)
            return list((await store.exchange(Exchange(None, finished=[given]))).refused)

        refused = self._same(play)
        return refused[0][1] if refused else ReportStatus.OK


async def _submitted(store: Store, jobs: list[NewJob]) -> list[SubmitReply] | int:
    """Submit jobs. If one was refused, return its index."""
    try:
        return await store.submit(jobs)
    except IdempotencyConflict as conflict:
        return int(str(conflict.facts["index"]))


async def all_jobs(store: Store) -> dict[JobId, JobRecord]:
    """Return all jobs, newest first. Sequence numbers differ between stores, so only the order is compared."""
    return {job.job_id: replace(job, seq=0) for job in await store.find(EVERYTHING)}


def _differences(first: StoreContents, second: StoreContents) -> Iterator[object]:
    """Yield only the differences, because a whole store is hard to read."""
    for name, one, other in zip(StoreContents._fields, first, second, strict=True):
        if name != "jobs" and one != other:
            yield name, one, other
    for job_id in first.jobs.keys() & second.jobs.keys():
        for field in fields(JobRecord):
            one, other = getattr(first.jobs[job_id], field.name), getattr(second.jobs[job_id], field.name)
            if one != other:
                yield job_id, field.name, one, other
    if list(first.jobs) != list(second.jobs):
        yield "order", list(first.jobs), list(second.jobs)


class StoreContents(NamedTuple):
    """Everything that can be read from a store at one moment."""

    jobs: dict[JobId, JobRecord]
    snapshot: object
    waiting: dict[str, int]
    stats: Stats
    leases: dict[str | None, list[Lease]]
    standings: list[object]


async def _read_contents(store: Store, same_numbers: bool) -> StoreContents:
    snapshot = await store.snapshot()
    waiting: Counter[str] = Counter()
    for view in snapshot.classes:
        waiting[view.key.lane] += view.waiting
    leases: dict[str | None, list[Lease]] = {}
    for worker_id in (*WORKERS, None):
        leases[worker_id] = [lease._replace(seq=0) for lease in await store.leases(worker_id=worker_id)]
    stats = _plain_stats(await store.stats())
    jobs = await all_jobs(store)
    picked = list(jobs)[:: max(1, len(jobs) // 2)]
    standings = [_plain_standing(await store.diagnose_job(job_id), same_numbers) for job_id in picked]
    return StoreContents(jobs, _plain_snapshot(snapshot, same_numbers), dict(+waiting), stats, leases, standings)


def _plain_snapshot(snapshot: Snapshot, same_numbers: bool) -> object:
    """Return a snapshot without empty classes and without their order, which stores may choose."""
    views = {view if same_numbers else view._replace(head_key=0) for view in snapshot.classes if view.waiting}
    return snapshot.now_at, views, snapshot.next_due_at, snapshot.running_jobs


def _plain_standing(diagnosis: JobDiagnostics | None, same_numbers: bool) -> object:
    assert diagnosis is not None
    job = replace(diagnosis.job, seq=0, history=())
    queue = diagnosis.queue
    seen = (_plain_snapshot(queue.snapshot, same_numbers), queue.workers, queue.executing, queue.rules)
    return diagnosis._replace(job=job, queue=seen)  # type: ignore[arg-type]


def _plain_stats(stats: Stats) -> Stats:
    """Return statistics without empty lanes and with workers in order of their ids."""
    lanes = {name: lane for name, lane in stats.lanes.items() if any(lane)}
    return replace(stats, lanes=lanes, workers=tuple(sorted(stats.workers, key=_worker_id)))


def _worker_id(worker: WorkerInfo) -> str:
    return worker.worker_id


def _plain_exchanged(answer: ExchangeReply, same_numbers: bool) -> object:
    assert answer.snapshot is not None
    leases = [lease._replace(seq=0) for lease in answer.leases]
    refused = list(answer.refused)
    return (
        answer.now_at,
        leases,
        refused,
        _plain_snapshot(answer.snapshot, same_numbers),
        answer.more,
        answer.worker_state,
    )


def play(kind: type[StoreHistory], store_name: str, seed: int, *, examples: int, steps: int) -> None:
    """Play histories of one kind on a store. Slower stores play fewer."""
    name = f"{kind.__name__}Of{store_name.title()}"
    machine = type(name, (kind,), {"make": staticmethod(HASTY_STORES[store_name])})
    run_state_machine_as_test(
        start_at(seed)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
