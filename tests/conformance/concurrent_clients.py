"""Concurrent clients of one store: each makes random calls and records every call with its reply."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, NamedTuple, cast
from uuid import UUID

from headway.core.errors import BatchClosed, BatchNotFound, JobError, StoreUnavailable
from headway.core.job import JobId, NewJob, RetryRule, State
from headway.core.lease import Lease, Report
from headway.core.policy.document import BUILT_IN, TENANT, Keep, LimitRule, Reserve, Rung
from headway.core.policy.enforced import EnforcedRules, PauseSet
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
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import BATCH_PREFIX, BatchId, Edge, EdgeRule, Graph, GraphNode, NewBatch
from headway.maintenance.recovery import end_worker, overdue, reap
from headway.stores.base import RULES, Exchange, Heartbeat, HeartbeatReply, JobQuery, Progress, Store
from headway.stores.rule_codec import rules_body
from tests.conformance.builders import a_job, a_worker
from tests.shared_file import open_any

FOREVER = 1 << 62
CUT = {"renew": 0.1, "exchange": 0.3}  # The share of lost calls that are cancelled before they end.
DAY = 86_400_000

# Delays are short, so that a short history sees delayed jobs run.
POLICY = replace(BUILT_IN, retry=RetryRule(base_ms=5, cap_ms=40, jitter=0.5))
KEEP = Keep(completed_ms=DAY, failed_ms=DAY, cancelled_ms=150, dead_letter_ms=DAY)  # Only cancelled jobs are pruned.

STANDING = EnforcedRules(
    limits={
        "account": LimitRule(concurrency=2, by="account_id"),
        "each": LimitRule(concurrency=1, by=TENANT, tasks=("exp*",)),
        "often": LimitRule(count=4, period_ms=100, burst=2, tasks=("resize",)),
    }
)
RUNGS = (Rung("fast", 3_000, limit=4), Rung("slow", 30_000, limit=2))
CHANGING = (
    EnforcedRules(),
    EnforcedRules(rungs=RUNGS),
    EnforcedRules(rungs=RUNGS, limits={"wide": LimitRule(concurrency=1, tasks=("export",))}),
    EnforcedRules(limits={"wide": LimitRule(concurrency=3, tasks=("export",))}, weights={"acme": 3.0}),
    EnforcedRules(pool_reserve=Reserve(frozenset({"high"}), 2, "pool"), costs_us={"export": 7_000_000}),
)
PAUSES = (
    PauseSet(),
    PauseSet(lanes=("low",)),
    PauseSet(tasks=("export",)),
    PauseSet(tenants=("acme",)),
    PauseSet(True),
)
OFFERS = ("gpu", "graph", "plain", "task:diamond", "task:export", "task:plain", "task:resize")
TENANTS = (None, "acme", "zeta")
UNIQUE_KEYS = tuple(f"u{number}" for number in range(4))


class Scene(NamedTuple):
    """The kind of a history. ``loss``: the share of calls whose reply is lost. Most of these calls are repeated."""

    name: str
    diagnosis: EnforcedRules = EnforcedRules()  # In force during the whole history.
    changing: bool = False  # Whether an operator changes the rules meanwhile.
    loss: float = 0.0
    meddling: bool = True  # Whether clients cancel jobs, mark workers dead, and report leases of other clients.
    lifted: bool = True  # Whether all rules are lifted at the end. Otherwise all waiting jobs must start under them.


SCENES = (
    Scene("in order", meddling=False),
    Scene("nothing holds back", loss=0.08),
    Scene("limits", STANDING, loss=0.05, lifted=False),
    Scene("rules come and go", changing=True, loss=0.05),
    Scene("limits and rules", STANDING, changing=True, loss=0.05),
)


class Entry(NamedTuple):
    """One try of one call. A repeated call keeps its number.

    ``returned`` is None if the reply was lost. If that call still ended, ``settled`` is the time of its end, and
    ``unheard`` is the reply.
    """

    client: str
    number: int
    verb: str
    given: tuple[Any, ...]
    invoked: int  # Nanoseconds of the machine's monotonic clock, which its processes share.
    returned: int | None
    answer: Any = None
    settled: int | None = None
    unheard: Any = None


class HistorySettings(NamedTuple):
    """The arguments of a process that takes part in a history."""

    address: str
    namespace: str
    scene: Scene
    seed: int
    clients: int  # In each process.
    steps: int
    apart: int = 0  # The number of processes beside that of the test.


class ReplyLost(Exception):
    """The caller does not know whether the call had an effect."""


class Recorder:
    """A client's view of a store that records each call and loses some replies."""

    def __init__(self, store: Store, client: str, rng: Random, loss: float, entries: list[Entry]) -> None:
        self._store, self._client, self._rng, self._loss, self._entries = store, client, rng, loss, entries
        self._numbers = count(1)
        self.namespace = store.namespace

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def call(*given: Any, **named: Any) -> Any:
            values, number = (*given, *named.values()), next(self._numbers)
            while True:
                await asyncio.sleep(0)  # Some stores never yield to other tasks by themselves.
                lost = self._rng.random() < self._loss * (2 if verb == "exchange" else 1)
                # Otherwise the call ends, and only its reply is lost.
                cut = lost and self._rng.random() < CUT.get(verb, 0.7)
                entry = Entry(self._client, number, verb, values, time.monotonic_ns(), None)
                try:
                    called = getattr(self._store, verb)(*given, **named)
                    answer = await (self._cut_off(called) if cut else called)
                except (ReplyLost, StoreUnavailable):
                    self._entries.append(entry)
                else:
                    now = time.monotonic_ns()
                    if not lost:
                        self._entries.append(entry._replace(returned=now, answer=answer))
                        return answer
                    self._entries.append(entry._replace(settled=now, unheard=answer))
                if self._rng.random() < 0.25:
                    raise ReplyLost

        return call

    async def _cut_off(self, called: Awaitable[Any]) -> None:
        """Cancel a call at a random step of its execution."""
        task = asyncio.ensure_future(called)
        for _ in range(self._rng.choice((0, 1, 2, 5, 20))):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and isinstance(problem := task.exception(), Exception):
            raise problem
        raise ReplyLost


def a_random_id(rng: Random) -> JobId:
    return JobId(str(UUID(int=rng.getrandbits(128))))


def recorded(store: Store, client: str, rng: Random, loss: float, entries: list[Entry]) -> Store:
    return cast(Store, Recorder(store, client, rng, loss, entries))


class SharedIds:
    """Ids and leases that the clients of one process share."""

    def __init__(self) -> None:
        self.job_ids: list[JobId] = []
        self.leases: list[Lease] = []
        self.worker_ids: list[str] = []
        self.batch_ids: list[BatchId] = []


class Client:
    """A client that submits, works and interferes. Its worker sometimes dies, and the client starts another one."""

    def __init__(self, store: Store, name: str, rng: Random, scene: Scene, shared: SharedIds) -> None:
        self._store, self._name, self._rng, self._scene, self._shared = store, name, rng, scene, shared
        self._held: dict[JobId, Lease] = {}
        self._stop: set[JobId] = set()
        self._mine: list[JobId] = []
        self._snapshot: Snapshot | None = None
        self._incarnation = 0
        self._worker = a_worker(name)

    async def play(self, steps: int) -> None:
        await self._start_worker()
        usual = (
            [self._submit] * 4
            + [self._submit_diamond] * 2
            + [self._work] * 10
            + [self._beat] * 3
            + [self._look] * 2
            + [self._reap]
        )
        if self._scene.meddling:
            usual += [self._cancel, self._retry, self._report_any, self._prune, self._reap, self._cancel_batch]
            usual += [self._rng.choice((self._crash, self._mark_dead, self._leave))]
        for _ in range(steps):
            with contextlib.suppress(ReplyLost):
                await self._rng.choice(usual)()
        while self._held:  # Most workers end their jobs before they stop.
            with contextlib.suppress(ReplyLost):
                if self._rng.random() < 0.3:
                    break
                await self._work()

    # ------------------------------------------------------------------ submitting

    async def _submit(self) -> None:
        jobs = [self._new_job() for _ in range(self._rng.choice((1, 1, 2, 4)))]
        answers = await self._store.submit(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if (job.persist and job.task != "plain") or self._scene.meddling:
                self._shared.job_ids.append(answer.job_id)
            if not answer.deduplicated:
                self._mine.append(answer.job_id)

    def _new_job(self) -> NewJob:
        choice, some = self._rng.choice, self._rng.random
        job_id = a_random_id(self._rng)
        kind = self._rng.randrange(12)
        if kind < 4:  # Jobs of one class, without limits and tenants.
            return a_job(job_id, task="plain", needs=("plain",))
        if kind == 4:
            return a_job(job_id, task="plain", lane="high", persist=False)
        return a_job(
            job_id,
            task="export" if kind == 6 else choice(("export", "resize")),
            lane=choice(("high", "medium", "low")),
            tenant=choice(TENANTS),
            needs=choice(((), (), ("gpu",))),
            rung=choice((None, "fast", "slow", "default")),
            max_retries=choice((0, 2, 5)),
            delay_ms=choice((0, 0, 0, 5, 30)),
            expires_ms=choice((None, None, None, None, 30)) if self._scene.meddling else None,
            limits=choice(((), ("account=7",), ("account=8",))),
            unique_key=choice(UNIQUE_KEYS) if kind == 5 else None,
            idempotency_key=f"k{self._rng.randrange(6)}" if kind == 6 else None,
            payload=b"[]" if kind == 6 or some() < 0.5 else b"[1]",
            retry=choice((None, RetryRule("fixed", 3, 3))),
        )

    async def _submit_diamond(self) -> None:
        """Submit four jobs that wait for each other, in a new batch with a callback or in a batch of another client."""
        top, left, right, bottom = ids = [a_random_id(self._rng) for _ in range(4)]
        after = {left: [top], right: [top], bottom: [left, right]}
        nodes = [GraphNode(self._graph_job(one), tuple(map(Edge, after.get(one, ())))) for one in ids]
        batch_ids = self._shared.batch_ids
        if batch_ids and self._rng.random() < 0.3:
            with contextlib.suppress(BatchClosed, BatchNotFound):
                await self._store.submit_graph(Graph(nodes, batch_id=self._rng.choice(batch_ids[-4:])))
            return
        create = NewBatch(BatchId(f"{BATCH_PREFIX}{a_random_id(self._rng)}"), "diamond", open=False)
        done = Edge(create.batch_id, EdgeRule.ON_DONE)
        nodes.append(GraphNode(self._graph_job(a_random_id(self._rng)), (done,), member=False))
        await self._store.submit_graph(Graph(nodes, create))
        batch_ids.append(create.batch_id)

    def _graph_job(self, job_id: JobId) -> NewJob:
        return a_job(job_id, task="diamond", needs=("graph",), max_retries=self._rng.choice((0, 5)))

    # ------------------------------------------------------------------ working

    async def _start_worker(self) -> None:
        """Start and register a new worker."""
        self._incarnation += 1
        self._worker = a_worker(
            f"{self._name}.{self._incarnation}", slots=self._rng.choice((1, 2, 4)), reserved=0, offers=OFFERS
        )
        self._shared.worker_ids.append(self._worker.worker_id)
        while True:
            with contextlib.suppress(ReplyLost):
                await self._renew(register=True)
                return

    async def _work(self) -> None:
        """Make one exchange: report some leases, report progress of others, and claim for the free slots."""
        rng = self._rng
        ended = [lease for lease in self._held.values() if rng.random() < 0.5]
        free = self._worker.slots - len(self._held) + len(ended) + rng.choice((0, 0, 0, 3))  # Some claim too much.
        if self._snapshot is None or rng.random() < 0.5:
            self._snapshot = await self._store.snapshot()
        seen = self._snapshot
        chosen = plan(seen, free=free, free_below=max(0, free - rng.choice((0, 0, 1))), offers=frozenset(OFFERS),
                      policy=POLICY)  # fmt: skip
        answer = await self._store.exchange(
            Exchange(
                self._worker.worker_id,
                rng.randbytes(16),
                [self._report(lease) for lease in ended],
                chosen._replace(known=len(seen.classes)) if rng.random() < 0.5 else chosen,
                [self._progress(lease) for lease in self._held.values() if lease not in ended and rng.random() < 0.2],
                wait=rng.random() < 0.3,
                want_snapshot=rng.random() < 0.5,
            )
        )
        self._snapshot = answer.snapshot
        for lease in ended:
            self._held.pop(lease.job_id, None)
        for lease in answer.leases:
            if lease.persist:
                self._held[lease.job_id] = lease
                self._shared.leases.append(lease)
        if answer.worker_state is not WorkerState.ACTIVE:
            await self._start_over(answer.worker_state)

    async def _start_over(self, state: WorkerState) -> None:
        """Register a dead worker again. Stop a draining worker once it holds no job."""
        if state is WorkerState.DRAINING and self._held:
            return
        if state is WorkerState.DEAD and self._rng.random() < 0.5:
            await self._renew(register=True)
        else:
            await self._crash()

    async def _beat(self) -> None:
        await self._renew(register=False)

    async def _renew(self, *, register: bool) -> None:
        rng = self._rng
        held = [(lease.job_id, lease.token) for lease in self._held.values()]
        answer: HeartbeatReply = await self._store.renew(
            Heartbeat(self._worker, rng.choice((40, 300, 3_000)), rng.choice((0, 20, 500)), held, register)
        )
        if answer.state is WorkerState.DEAD:
            await self._start_over(answer.state)
            return
        for job_id in answer.lost:
            self._held.pop(job_id, None)
        self._stop.update(answer.cancel)

    async def _crash(self) -> None:
        """Abandon all leases, as a crash does, and start a new worker."""
        self._held.clear()
        await self._start_worker()

    def _report(self, lease: Lease) -> Report:
        return judge(self._ending(lease), lease, POLICY, chance=self._rng.random())

    def _ending(self, lease: Lease) -> Ending:
        rng = self._rng
        if lease.job_id in self._stop and rng.random() < 0.7:
            return Stopped()
        if rng.random() < 0.55:
            return Returned(rng.randbytes(8))  # Each outcome is unique.
        return rng.choice(
            (
                Raised(JobError("ValueError", "no such account")),
                Raised(JobError("ValueError", "no such account"), after_ms=0),
                Raised(JobError("ValueError", "bad", retriable=False)),
                TimedOut(JobError("TimedOut", "too slow")),
                Snoozed(0),
                Snoozed(10),
                Released(),
                Released(),
                Crashed("signal 9"),
                Unknown(),
            )
        )

    def _progress(self, lease: Lease) -> Progress:
        return Progress(lease.job_id, lease.seq, lease.token, round(self._rng.random(), 2), None)

    # ------------------------------------------------------------------ meddling

    async def _report_any(self) -> None:
        """Report on a recent lease of any client, held or not."""
        if self._shared.leases:
            lease = self._rng.choice(self._shared.leases[-30:])
            await self._store.exchange(Exchange(None, finished=[self._report(lease)]))

    async def _cancel(self) -> None:
        if self._shared.job_ids:
            await self._store.cancel([self._any_job()])

    async def _retry(self) -> None:
        if self._shared.job_ids:
            await self._store.retry([self._any_job()])

    async def _cancel_batch(self) -> None:
        if self._shared.batch_ids:
            await self._store.cancel_batch(self._rng.choice(self._shared.batch_ids[-4:]))

    async def _look(self) -> None:
        rng = self._rng
        match rng.randrange(3):
            case 0 if self._shared.job_ids:
                await self._store.get([self._any_job(), self._any_job()])
            case 1:
                await self._store.leases(worker_id=self._worker.worker_id)
            case _:
                states = rng.choice(((), (State.EXECUTING,), (State.QUEUED,), (State.CANCELLED, State.FAILED)))
                await self._store.find(JobQuery(states, limit=20))

    def _any_job(self) -> JobId:
        return self._rng.choice(self._shared.job_ids[-self._rng.choice((5, 40)) :])

    async def _reap(self) -> None:
        found = await overdue(self._store)
        if found:  # Late workers may renew before the reports arrive.
            await asyncio.sleep(self._rng.choice((0, 0.005, 0.03)))
        await reap(self._store, found, POLICY)

    async def _mark_dead(self) -> None:
        """Mark a worker as dead that may be alive and working."""
        gone = self._rng.choice(self._shared.worker_ids[-4:])
        await end_worker(self._store, gone, POLICY, lambda _: Crashed("gone"))

    async def _leave(self) -> None:
        await self._store.drain(self._worker.worker_id)

    async def _prune(self) -> None:
        await self._store.prune(KEEP)


class Operator:
    """An operator that changes the rules repeatedly."""

    def __init__(self, store: Store, rng: Random) -> None:
        self._store, self._rng = store, rng

    async def play(self, until: asyncio.Event) -> None:
        while not until.is_set():
            with contextlib.suppress(ReplyLost):
                if self._rng.random() < 0.5:
                    await self._store.write(RULES, "policy", rules_body(self._rng.choice(CHANGING)))
                else:
                    paused = self._rng.choice((PauseSet(), *PAUSES))
                    await self._store.write(RULES, "pauses", rules_body(EnforcedRules(paused=paused)))
            await _until(until, self._rng.choice((0.002, 0.02, 0.1)))


class Watcher:
    """A client that repeatedly reads the whole queue."""

    def __init__(self, store: Store, rng: Random) -> None:
        self._store, self._rng = store, rng

    async def play(self, until: asyncio.Event) -> None:
        while not until.is_set():
            with contextlib.suppress(ReplyLost):
                match self._rng.randrange(4):
                    case 0:
                        await self._store.stats()
                    case 1:
                        await self._store.find(JobQuery((State.EXECUTING,), limit=100))
                    case _:
                        await self._store.diagnose()
            await _until(until, 0.005)


async def _await_processes(store: Store, name: str, parties: int) -> None:
    """Wait until all processes have started, so that none is done before the others begin."""
    await store.write("meeting", name, b"here")
    async with asyncio.timeout(60):
        while len(await store.read("meeting")) < parties:  # noqa: ASYNC110  (they are in other processes)
            await asyncio.sleep(0.002)


async def _until(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def run_clients(settings: HistorySettings, stores: Sequence[Store], name: str) -> list[Entry]:
    """Run clients, spread over these stores. Return everything that they recorded."""
    entries: list[Entry] = []
    shared = SharedIds()
    scene, ended = settings.scene, asyncio.Event()

    def on(index: int, called: str) -> tuple[Store, Random]:
        rng = Random(f"{settings.seed} {settings.namespace} {name} {called}")
        return recorded(stores[index % len(stores)], f"{name}.{called}", rng, scene.loss, entries), rng

    await _await_processes(stores[0], name, 1 + settings.apart)
    async with asyncio.TaskGroup() as group:
        if name == "main":
            group.create_task(Watcher(*on(0, "watcher")).play(ended))
            if scene.changing:
                group.create_task(Operator(*on(1, "operator")).play(ended))
        clients = []
        for index in range(settings.clients):
            store, rng = on(index, f"c{index}")
            clients.append(Client(store, f"{settings.namespace}.{name}.c{index}", rng, scene, shared))
        players = [group.create_task(client.play(settings.steps)) for client in clients]
        await asyncio.wait(players)
        ended.set()
    return entries


async def open_stores(address: str, namespace: str, many: int) -> list[Store]:
    """Open several instances of a store, or one if the store lives in one process."""
    stores = [open_any(address, namespace)]
    if stores[0].abilities.shared:
        stores += [open_any(address, namespace) for _ in range(many - 1)]
    await asyncio.gather(*(store.open() for store in stores))
    return stores


def run_clients_in_process(settings: HistorySettings, name: str) -> list[Entry]:
    """Run clients in this process, beside that of the test."""

    async def play() -> list[Entry]:
        stores = await open_stores(settings.address, settings.namespace, 1)
        try:
            return await run_clients(settings, stores, name)
        finally:
            for store in stores:
                await store.close()

    return asyncio.run(play())


def worker_slots(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the number of slots that each worker has registered."""
    found: dict[str, int] = {}
    for entry in entries:
        if entry.verb == "renew":
            worker: WorkerInfo = entry.given[0].worker
            found[worker.worker_id] = worker.slots
    return found
