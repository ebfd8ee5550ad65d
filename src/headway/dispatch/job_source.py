"""Supplies a worker with jobs: plans claims from a snapshot and exchanges with the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from headway.core.errors import StoreError
from headway.core.job import ClassKey
from headway.core.lease import TOKEN_BYTES, Lease, Report
from headway.core.policy.lanes import make_room
from headway.core.policy.planner import Planner
from headway.core.policy.retry import Ending, Released, judge
from headway.core.snapshot import Plan, Snapshot
from headway.core.worker import TASK, WorkerState, serves
from headway.estimates.costs import TaskCosts
from headway.maintenance.recovery import end_leases
from headway.metrics.recorder import MetricsRecorder
from headway.policy_store.current import CurrentPolicy
from headway.runtime.failpoints import reach
from headway.stores.base import Exchange, ExchangeReply, Progress, Store, Subscription

SNAPSHOT_AGE = 0.02  # Seconds; a plan from an older snapshot may choose the wrong class.
SNAPSHOT_AGE_ALONE = 0.2  # Seconds with a single class, because the plan has nothing to choose.
ASK_EVERY = 60.0  # Maximum seconds between claims while the cheap idle check reports an empty queue.
DEBT_MAX = 60.0  # Maximum seconds beyond its expected cost that one job charges to its lane.


class FinishedRun(NamedTuple):
    """A job that has run here, how it ended, and after how many seconds."""

    lease: Lease
    ending: Ending
    seconds: float


class ClaimResult(NamedTuple):
    """The result of an exchange. ``more``: claim again at once, because a job was skipped or has just appeared."""

    leases: Sequence[Lease]
    refused: Sequence[tuple[str, str]]
    more: bool
    state: WorkerState
    next_due: float | None  # Seconds until the next delayed job falls due.


class StoreJobSource:
    """Exchanges with a store, for one loop that makes one exchange after another.

    It keeps the clocks by which lanes and classes share this worker's claims. They start at ``offset`` in [0, 1).
    """

    def __init__(
        self,
        store: Store,
        in_force: CurrentPolicy,
        worker_id: str,
        offers: Sequence[str],
        *,
        durations: TaskCosts | None = None,
        recorder: MetricsRecorder | None = None,
        offset: float = 0.0,
        confirm: float = 0.0,
    ) -> None:
        self._store = store
        self._in_force = in_force
        self._durations = durations or TaskCosts()
        self._recorder = recorder or MetricsRecorder()
        self._planner = Planner(offset)
        self._worker_id = worker_id
        self._take_handed = store.abilities.handed if confirm > 0 else None
        self._confirm_ms = int(confirm * 1_000)
        self._offers = frozenset(offers)
        self._learn_task: Callable[[str], bool] | None = None
        self._unknown_tasks: set[str] = set()  # Tasks of waiting jobs that this worker cannot import.
        self._snapshot = Snapshot(0)
        self._seen = -1.0
        self._dry = True  # The last exchange returned fewer jobs than it asked for.
        self._idle_since = 0.0  # Monotonic time of the last view of the store, if its queue was empty; else 0.
        self._request: Exchange | None = None
        self._asked = -1.0  # When this worker last asked for jobs,
        self._waits_for: tuple[str, ...] | None = None  # of these lanes (None: any),
        self._waits = False  # and whether the store wakes it for them.
        self._runs: Sequence[tuple[Lease, float]] = ()  # Finished runs of the request that are not recorded yet.
        self._unrecorded: Callable[[], None] | None = None  # Records the last exchange that returned jobs.
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def idle_since(self) -> float:
        """Monotonic time at which the queue was last seen empty; 0 if a job may come without a wake-up."""
        return self._idle_since if self._waits and self._waits_for is None else 0.0

    async def exchange(
        self,
        finished: Sequence[FinishedRun],
        progress: Sequence[Progress],
        *,
        free: int,
        free_below: int,
        woken: bool = False,
    ) -> ClaimResult:
        """Exchange for a runner of this process: learn from its finished runs and decide what becomes of their jobs."""
        reports: Sequence[Report] = ()
        if finished and self._request is None:
            self._runs = [(lease, seconds) for lease, _, seconds in finished]
            self._correct(self._runs)
            policy, chance = self._in_force.policy, random.random
            reports = [judge(ending, lease, policy, chance=chance()) for lease, ending, _ in finished]
        return await self.exchange_reports(reports, progress, free=free, free_below=free_below, woken=woken)

    async def exchange_reports(
        self,
        finished: Sequence[Report],
        progress: Sequence[Progress],
        *,
        free: int,
        free_below: int,
        woken: bool = False,
        claim_id: bytes | None = None,
        wait: bool = True,
    ) -> ClaimResult:
        """Report finished jobs and claim for the free slots.

        ``woken``: the store announced a job, so the exchange claims before it reads another snapshot.
        ``wait``: if the exchange returns no job, the store wakes this worker for the next one.

        After an error the next call sends the same request again, because only the reply may have been lost. A repeated
        claim returns the same leases. A caller with a ``claim_id`` repeats its request itself.
        """
        policy = self._in_force.policy
        lanes = None if free_below > 0 else tuple(sorted(policy.reserve.lanes))
        if free > 0 and not (finished or progress or woken or claim_id) and await self._rests(lanes):
            return ClaimResult((), (), False, WorkerState.ACTIVE, None)
        if woken and free > 0 and not (finished or progress) and (handed := self.handed()):
            return ClaimResult(handed, (), False, WorkerState.ACTIVE, None)
        if self._request is None or claim_id is not None:
            self._request = Exchange(
                self._worker_id,
                claim_id or os.urandom(TOKEN_BYTES),
                finished,
                self._plan(free, free_below) if free > 0 else None,
                progress,
                wait=wait and free > 0,
                want_snapshot=free > 0 and not woken and time.monotonic() - self._seen > self._age_max(free_below),
                wait_lanes=lanes,
                handover=self._take_handed is not None and wait and free > 0,
            )
        request = self._request
        self._waits = False
        asked = time.monotonic()
        answer = await self._ask(request)
        answered = time.monotonic()
        record = partial(self._record, request, answer, self._runs, asked, answered, here=claim_id is None)
        self._runs, self._request = (), None
        if any(lease.unreadable for lease in answer.leases):
            answer = await self._without_unreadable(answer)
        self._charge(answer.leases)
        result = self._read(request, answer)
        self._waits = (
            request.wait and not answer.leases and not result.more and answer.worker_state is WorkerState.ACTIVE
        )
        self._waits_for, self._asked = request.wait_lanes, answered
        if answer.snapshot is not None and answer.snapshot.running_jobs is not None:
            result = await self._make_room(answer.snapshot, result)
        if answer.leases and claim_id is None:
            self._record_later(record)
        else:
            self._flush()
            record()
        return result

    def _plan(self, free: int, free_below: int) -> Plan:
        return self._planner.plan(
            self._snapshot, free=free, free_below=free_below, offers=self._offers, policy=self._in_force.policy
        )

    def offer_learned(self, learn: Callable[[str], bool]) -> None:
        """Also serve jobs of tasks that other workers did not know, if ``learn`` finds the task by its name."""
        self._learn_task = learn

    def _learn(self, seen: Snapshot) -> None:
        """Import the tasks that waiting jobs need and this worker does not offer."""
        if self._learn_task is None:
            return
        for view in seen.classes:
            for need in view.key.needs if view.waiting else ():
                if need.startswith(TASK) and need not in self._offers and need not in self._unknown_tasks:
                    if self._learn_task(need.removeprefix(TASK)):
                        self._offers |= {need}
                    else:
                        self._unknown_tasks.add(need)

    async def _without_unreadable(self, answer: ExchangeReply) -> ExchangeReply:
        """End the leases whose jobs cannot be read. Return the reply without them."""
        bad = [lease for lease in answer.leases if lease.unreadable is not None]
        with contextlib.suppress(StoreError):  # The next renewal omits these leases, which also ends them.
            await end_leases(
                self._store,
                bad,
                self._in_force.policy,
                lambda _: Released(),
                expired_only=False,
                recorder=self._recorder,
            )
        good = [lease for lease in answer.leases if lease.unreadable is None]
        return answer._replace(leases=good, more=True)

    def handed(self) -> Sequence[Lease]:
        """Return the leases that the store sent along with its wake-up."""
        answer = None
        if self._take_handed is not None and self._request is None:
            answer = self._take_handed(self._worker_id, self._confirm_ms)
        if answer is None or any(lease.unreadable for lease in answer.leases):  # The next exchange returns them again.
            return ()
        self._waits, self._dry = False, True
        self._charge(answer.leases)
        self._record_later(partial(self._record_claim, answer.leases, time.monotonic()))
        return answer.leases

    def _charge(self, leases: Sequence[Lease]) -> None:
        if len(self._snapshot.classes) > 1:  # A single class has no other to share with.
            alike = Counter((lease.class_key, lease.task) for lease in leases)
            for (key, task), count in alike.items():
                self._planner.clocks.charge(self._in_force.policy, key, self._durations.expected(task), count)

    async def _rests(self, lanes: tuple[str, ...] | None) -> bool:
        """Return whether the queue is still empty, so that no exchange is needed."""
        if (
            not (self._waits and self._idle_since and self._waits_for == lanes)
            or self._request is not None
            or self._snapshot.next_due_at is not None
            or time.monotonic() - self._asked > ASK_EVERY
            or (quiet := self._store.abilities.quiet) is None
            or not await quiet(len(self._snapshot.classes))
        ):
            return False
        self._idle_since = time.monotonic()
        return True

    async def _ask(self, request: Exchange) -> ExchangeReply:
        try:
            reach("exchange.before")
            answer = await self._store.exchange(request)
            reach("exchange.after")
        except StoreError:
            self._recorder.trouble()
            raise
        return answer

    def _record_later(self, record: Callable[[], None]) -> None:
        """Record an exchange after the next turn of the loop.

        By then the claimed jobs have started. If they have ended too, the store already works on the next exchange.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._flush()
        self._unrecorded = record
        self._loop.call_soon(self._loop.call_soon, self._flush)

    def _flush(self) -> None:
        record, self._unrecorded = self._unrecorded, None
        if record is not None:
            record()

    def _record(
        self,
        request: Exchange,
        answer: ExchangeReply,
        runs: Sequence[tuple[Lease, float]],
        asked: float,
        answered: float,
        *,
        here: bool,
    ) -> None:
        """Count an exchange, its reports and its claims. ``here``: the slots and jobs are in this process."""
        recorder, leases = self._recorder, answer.leases
        recorder.exchanged(answered - asked, len(leases))
        if runs:
            self._note(runs)
        if request.finished:
            recorder.reported(request.finished, answer.refused)
        if here:
            recorder.idle(self._idle_reserve(request.plan, leases))
            if leases:
                self._record_claim(leases, answered)
        elif leases:  # Leases of a repeated claim are counted already.
            recorder.claimed([lease for lease in leases if lease.started_at == answer.now_at])

    def _record_claim(self, leases: Sequence[Lease], claimed: float) -> None:
        self._recorder.claimed(leases)
        self._recorder.began(claimed)

    def _idle_reserve(self, asked: Plan | None, leases: Sequence[Lease]) -> int:
        """Return how many reserved slots are idle while jobs of other lanes wait that could run here."""
        if asked is None or asked.free <= len(leases):
            return 0
        lanes = self._in_force.policy.reserve.lanes
        below = len(leases) if asked.leave_free else sum(lease.lane not in lanes for lease in leases)
        if asked.free_below > below or not any(
            view.waiting
            and view.blocked is None
            and view.key.lane not in lanes
            and serves(view.key.needs, self._offers)
            for view in self._snapshot.classes
        ):
            return 0
        return asked.free - len(leases)

    async def _make_room(self, seen: Snapshot, result: ClaimResult) -> ClaimResult:
        """Preempt jobs and sessions that hold back waiting jobs, and claim again if that freed slots."""
        wanted = make_room(seen, offers=self._offers, policy=self._in_force.policy, chance=random.random())
        lowered: Sequence[bool] = ()
        with contextlib.suppress(StoreError):  # The claimed jobs must not be lost. A later exchange preempts.
            lowered = await self._store.preempt(wanted) if wanted else ()
        return result._replace(more=True) if any(lowered) else result

    async def withdraw(self) -> None:
        """Stop waiting for submits, so that the next one wakes another worker."""
        await self._store.exchange(Exchange(self._worker_id, os.urandom(TOKEN_BYTES), plan=Plan()))

    def subscribe(self) -> Subscription:
        """Open the subscription that wakes this worker when a client submits a job that it can serve."""
        return self._store.subscribe(self._worker_id)

    def leave(self) -> None: ...

    async def close(self) -> None:
        self._flush()

    def learn(self, runs: Sequence[tuple[Lease, float]]) -> None:
        """Record how many seconds jobs took, and correct the charges of their lanes."""
        self._correct(runs)
        self._note(runs)

    def _correct(self, runs: Sequence[tuple[Lease, float]]) -> None:
        if len(self._snapshot.classes) > 1:
            over: dict[ClassKey, float] = {}
            for lease, seconds in runs:
                key = lease.class_key
                over[key] = over.get(key, 0.0) + min(seconds - self._durations.expected(lease.task), DEBT_MAX)
            for key, seconds in over.items():
                self._planner.clocks.correct(self._in_force.policy, key, seconds)

    def _note(self, runs: Sequence[tuple[Lease, float]]) -> None:
        self._durations.ended(runs)
        self._recorder.note(runs)

    def _age_max(self, free_below: int) -> float:
        """Return the maximum age in seconds of a snapshot that a plan may use."""
        if self._dry or free_below <= 0:  # A worker sleeps only after it has read a new snapshot.
            return 0.0
        return SNAPSHOT_AGE if len(self._snapshot.classes) > 1 else SNAPSHOT_AGE_ALONE

    def _read(self, request: Exchange, answer: ExchangeReply) -> ClaimResult:
        more = answer.more
        if request.plan is not None:
            self._dry = len(answer.leases) < min(request.plan.free, request.plan.free_below)
        if answer.snapshot is not None:
            known = {view.key for view in self._snapshot.classes if serves(view.key.needs, self._offers)}
            self._learn(answer.snapshot)
            # The store rejects a plan that misses a class, and does not register the worker as waiting.
            outdated = request.plan is not None and (request.plan.known or 0) < len(answer.snapshot.classes)
            self._snapshot = answer.snapshot
            self._seen = time.monotonic()
            self._idle_since = 0.0 if any(view.waiting for view in answer.snapshot.classes) else self._seen
            # A class that is new to this worker was not in the plan. Claim from it now.
            more = more or (
                answer.worker_state is WorkerState.ACTIVE
                and (
                    outdated
                    or any(
                        view.waiting and view.key not in known and serves(view.key.needs, self._offers)
                        for view in answer.snapshot.classes
                    )
                )
            )
        elif request.plan is not None and not answer.leases and answer.worker_state is WorkerState.ACTIVE:
            # The plan used an old snapshot and claimed nothing. Read a new one before the worker sleeps.
            self._seen = -1.0
            more = True
        due_at = self._snapshot.next_due_at
        next_due = None if due_at is None else max(0.0, (due_at - answer.now_at) / 1_000)
        return ClaimResult(answer.leases, answer.refused, more, answer.worker_state, next_due)
