"""A simulated worker: plans claims as a real one does, and starts and ends runs on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from headway.core.job import ClassKey, JobId
from headway.core.lease import Lease, Report
from headway.core.policy.document import reserved_slots
from headway.core.policy.lanes import make_room
from headway.core.policy.planner import Planner
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import WorkerInfo, WorkerState, serves
from headway.core.workflow import HELD_AT
from headway.dispatch.job_source import DEBT_MAX
from headway.simulate.capacity import WorkerPlan
from headway.stores.base import Exchange, Heartbeat
from headway.stores.memory import claim, heartbeat
from headway.stores.memory.state import MemoryState
from headway.stores.notifications import LocalSubscription

if TYPE_CHECKING:
    from headway.simulate.replay import Replayer

FOREVER_MS = 1_000 * 365 * 24 * 3_600_000  # A thousand years: no lease of a simulated worker expires.


class WakeUp(LocalSubscription):
    """Receives the store's wake-ups for one worker, and passes them on at once."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(lambda _: None)
        self._pass_on = wake

    def notify(self, job_ids: Iterable[JobId] = ()) -> None:
        self._pass_on()


class SimulatedRun:
    """One attempt that runs. Lowering it moves its end forward."""

    __slots__ = ("class_key", "ends_at", "lease", "run_ms", "worker")

    def __init__(self, lease: Lease, class_key: ClassKey, worker: SimulatedWorker, run_ms: int, ends_at: int) -> None:
        self.lease = lease
        self.class_key = class_key
        self.worker = worker
        self.run_ms = run_ms  # How long it would run if nothing stopped it.
        self.ends_at = ends_at


class SimulatedWorker:
    """One worker, which plans by the snapshot that came with its last exchange and has clocks of its own."""

    def __init__(self, replay: Replayer, described: WorkerPlan, offset: float) -> None:
        self.plan = described
        self.name = described.name
        self.free = 0  # Slots that a claim may fill,
        self.free_below = 0  # and how many of them lanes outside the reserve may.
        self._leaving = False
        self._replay = replay
        self._policy = replay.policy
        self._expected = replay.expected
        self._lanes = replay.policy.reserve.lanes
        self._wait_lanes = tuple(sorted(self._lanes))
        self._leave_free = replay.policy.reserve.rule == "leave_free"
        self._offers = frozenset(described.offers)
        self._planner = Planner(offset)
        self._clocks = self._planner.clocks
        self._snapshot = Snapshot(0)
        self._filled: list[ClassView] = []  # The classes with waiting jobs in it.
        self._claims = 0

    def resize(self, slots: int) -> None:
        """Register with this many slots. Running jobs go on if there are fewer slots now."""
        reserved = reserved_slots(self._policy, slots, self.plan.reserved)
        held = [run.lease for run in self._replay.runs.values() if run.worker is self]
        self.free = 0 if self._leaving else slots - len(held)
        self.free_below = slots - reserved - self._policy.reserve.outside([lease.lane for lease in held])
        info = WorkerInfo(
            worker_id=self.name,
            host="simulated",
            pid=0,
            slots=slots,
            reserved=reserved,
            offers=self.plan.offers,
            version="",
        )
        named = [(lease.job_id, lease.token) for lease in held]
        heartbeat.renew(self._replay.state, Heartbeat(info, FOREVER_MS, FOREVER_MS, named, register=True))

    def leave(self) -> None:
        """Claim nothing more. Running jobs end as usual."""
        self._leaving, self.free = True, 0
        self._replay.state.set_worker_state(self.name, WorkerState.DRAINING)

    def ended(self, run: SimulatedRun, seconds: float) -> None:
        """Free the slot of a run, and correct what its lane was charged for it."""
        if not self._leaving:
            self.free += 1
        if self._leave_free or run.lease.lane not in self._lanes:
            self.free_below += 1
        if len(self._snapshot.classes) > 1:
            over = seconds - self._expected[run.lease.task]
            self._clocks.correct(self._policy, run.class_key, min(over, DEBT_MAX))

    def exchange(self, finished: Sequence[Report] = ()) -> None:
        """Report what has ended and claim for the free slots, again while there may be more to claim."""
        if not finished or not self._report(finished):
            self._exchange(finished)
        if self.free_below <= 0 < self.free:
            self._replay.idle_reserves.add(self.name)
        else:
            self._replay.idle_reserves.discard(self.name)

    def _report(self, finished: Sequence[Report]) -> bool:
        """Report what has ended while nothing waits. Return False, with nothing done, if a claim may find a job.

        Half of all exchanges are of this kind. A plan and a snapshot would only repeat that nothing waits.
        """
        state = self._replay.state
        seen = self._snapshot
        if seen.running_jobs is not None or self.free <= 0 or len(seen.classes) < len(state.queues):
            return False
        if self._filled or not _is_empty(state):
            return False
        state.begin(self._replay.now_at)
        answer = claim.exchange(state, Exchange(self.name, b"", finished))
        if answer.more or not _is_empty(state):
            self._exchange(())
            return True
        state.wait(self.name, None if self.free_below > 0 else self._wait_lanes)
        return True

    def _exchange(self, finished: Sequence[Report]) -> None:
        replay, state = self._replay, self._replay.state
        while True:
            free, below = self.free, self.free_below
            lanes = None if below > 0 else self._wait_lanes
            self._claims += 1
            wanted = None
            if free > 0:
                wanted = self._planner.plan(
                    self._snapshot, free=free, free_below=below, offers=self._offers, policy=self._policy
                )
            state.begin(replay.now_at)
            claim_id, asks = self._claims.to_bytes(16, "big"), free > 0
            answer = claim.exchange(state, Exchange(self.name, claim_id, finished, wanted, (), asks, asks, lanes))
            finished = ()
            seen = answer.snapshot
            if seen is None:
                return
            known = len(self._snapshot.classes)
            shared = known > 1
            self._snapshot, self._filled = seen, [view for view in seen.classes if view.waiting]
            for lease in answer.leases:
                self._start(lease, charged=shared)
            if seen.next_due_at is not None:
                replay.poll_at(seen.next_due_at)
            again = answer.more or len(seen.classes) > known  # A new class was not in the plan.
            if seen.running_jobs is not None:
                lowered = make_room(seen, offers=self._offers, policy=self._policy, chance=replay.chance.random())
                again = (replay.preempt(lowered) if lowered else False) or again
            if again and self.free > 0:
                continue
            if answer.leases and self.free > 0:  # The store does not wake a worker that got jobs.
                if self._filled and self._could_claim():
                    continue
                state.wait(self.name, None if self.free_below > 0 else self._wait_lanes)
            return

    def _could_claim(self) -> bool:
        """Return whether another exchange at this moment could return a job. Without it, it would only register."""
        below = self.free_below > 0
        for view in self._filled:
            can_start = view.blocked is None and (below or view.key.lane in self._lanes)
            if can_start and serves(view.key.needs, self._offers):
                return True
        return False

    def _start(self, lease: Lease, *, charged: bool) -> None:
        self.free -= 1
        if self._leave_free or lease.lane not in self._lanes:
            self.free_below -= 1
        class_key = self._replay.state.jobs[lease.job_id].class_key
        if charged:
            self._clocks.charge(self._policy, class_key, self._expected[lease.task])
        self._replay.start(lease, class_key, self)


def _is_empty(state: MemoryState) -> bool:
    """Return whether no job waits, or will wait without another submit or end of a job. None is ever transient here."""
    for queue in state.queues.values():
        if queue.front or queue.blocked:
            return False
    return not state.delayed or state.delayed[0][0] >= HELD_AT
