"""One poll of an HTTP worker: the results it reports, the jobs it gets, and how long it waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec.structs import replace

from headway.core.errors import WorkerUnknown
from headway.core.job import JobId
from headway.core.lease import TOKEN_BYTES, Lease
from headway.core.policy.retry import Released
from headway.core.worker import WorkerState
from headway.dispatch.job_source import ClaimResult
from headway.maintenance.recovery import end_leases
from headway.policy_store.current import CurrentPolicy
from headway.protocol.worker import PollRequest, ResultOutcome
from headway.runtime.bounded_wait import wait_until_set
from headway.server.gateway.results import ResultBatch
from headway.server.gateway.session import PendingPoll, WorkerSession
from headway.stores.base import Store

SLOW_POLL = 1.0  # Seconds between exchanges while a poll waits, in case a wake-up is lost.
READ_LEASES_EVERY = 0.5  # Seconds between reads of a polling worker's leases; a cancel reaches it within a second.
READ_LEASES_IDLE_EVERY = 10.0  # The same while it has no leases. Only another server could hand it one.
PENDING_POLL_SECONDS = 1.0  # Maximum seconds of a poll while the worker has a pending cancel or drain.
CLAIMED_AT_ONCE = 64  # Maximum jobs of one exchange.
ANSWER_BYTES = 4 << 20  # Bytes of payload in one reply. Jobs beyond that stay queued.
EXCHANGES_MAX = 50  # Maximum exchanges in a row while the store has more classes to check.


class PollResult(NamedTuple):
    """The result of a poll, with the leases to hand out."""

    leases: Sequence[Lease]
    cancel: list[JobId]
    lost: list[JobId]
    budgets: dict[JobId, float]
    settled: list[ResultOutcome]
    more: bool
    next_due: float | None
    state: WorkerState


class LongPoll:
    """One poll, from its first exchange to its reply.

    The store wakes it on a submit, a cancel or a drain. A reported result, a delayed job that falls due and the slow
    poll wake it too. It ends when there is something to reply, at the latest after ``wait_seconds``.
    """

    def __init__(
        self,
        store: Store,
        in_force: CurrentPolicy,
        session: WorkerSession,
        poll: PendingPoll,
        request: PollRequest,
        gone: asyncio.Future[Any] | None,
    ) -> None:
        self._store = store
        self._in_force = in_force
        self._session = session
        self._poll = poll
        self._request = request
        self._capabilities = None if request.capabilities is None else frozenset(request.capabilities)
        self._gone = gone
        self._until = time.monotonic() + request.wait_seconds
        self._delivered = session.delivered[poll.claims]
        self._state = WorkerState.ACTIVE
        self._waited = False
        self._read_again = False  # Its leases were read again because they left too little room.
        self._more = False
        self._asked = 0  # Jobs that the last exchange asked for.
        self._next_due: float | None = None
        self._settled: list[ResultOutcome] = []

    async def run(self) -> PollResult:
        session, request = self._session, self._request
        handed = ResultBatch(self._store, session, self._in_force.policy)
        if request.results or request.progress:
            await handed.prepare(request.results, request.progress)
        given: bytes | None = None
        if request.claim_id is not None:  # The token includes the worker's id, so that two workers never share one.
            named = f"{session.registration.worker_id}\0{request.claim_id}"
            given = blake2b(named.encode(), digest_size=TOKEN_BYTES).digest()
        leases = await self._claimed_before(given)
        repeated = bool(leases) or (given is not None and session.spent == given)
        session.fresh = False
        leases = await self._serve(handed, given, claims=not repeated) or leases
        if leases and given is None and self._is_gone():
            await self._give_back(leases)
            leases = ()
        if self._poll.waits and (session.newest is self._poll or session.newest is None):
            with contextlib.suppress(Exception):  # Then the store stops counting on this worker when its wait expires.
                await session.job_source(self._capabilities).withdraw()
        cancel = session.cancels()
        self._delivered.cancels.update(cancel)
        budgets = self._delivered.budgets = session.budgets()
        self._delivered.drains = self._state is not WorkerState.ACTIVE
        return PollResult(
            leases, cancel, session.lost(), budgets, self._settled, self._more, self._next_due, self._state
        )

    async def _serve(self, handed: ResultBatch, given: bytes | None, *, claims: bool) -> Sequence[Lease]:
        """Exchange until there is something to reply, or the time is up."""
        rounds = 0
        while True:
            left = self._left()
            free = await self._free() if claims else 0
            claimed = await self._exchange(handed, given, free=free, wait=left > 0)
            if handed.reports or self._request.results:
                self._settled = await handed.conclude(claimed.refused)
                handed = ResultBatch(self._store, self._session, self._in_force.policy)
                self._request = replace(self._request, results=[])  # The store has them, so the leases are up to date.
            handed.progress.clear()
            self._state, self._next_due = claimed.state, claimed.next_due
            if claimed.state is WorkerState.DEAD:
                raise WorkerUnknown(worker_id=self._session.registration.worker_id)
            self._more = claimed.more and free > 0
            if claimed.leases:
                return await self._fill(await self._fitting(claimed.leases), given, free)
            rounds += 1
            if self._more and rounds < EXCHANGES_MAX and not self._is_over():
                continue
            await self._read_leases()
            if not claims or self._has_undelivered() or self._left() <= 0 or self._is_over():
                return ()
            rounds = 0
            await self._pause(free)
            if self._is_over():
                return ()

    async def _fill(self, leases: list[Lease], given: bytes | None, free: int) -> list[Lease]:
        """Claim for the slots that are left, a batch at a time, until the reply is large enough.

        A claim that can be repeated is a single batch, so that a repeat finds all of it. The worker then polls again.
        """
        policy, batch = self._in_force.policy, leases
        while len(leases) < free and len(batch) == self._asked and not self._is_over():
            room = ANSWER_BYTES - sum(len(lease.payload) for lease in leases)
            if given is not None or room < max(len(lease.payload) for lease in batch):
                self._more = True
                break
            if self._request.below is not None:
                below = policy.reserve.outside([lease.lane for lease in batch])
                self._request = replace(self._request, below=max(0, self._request.below - below))
            handed = ResultBatch(self._store, self._session, policy)
            claimed = await self._exchange(handed, None, free=free - len(leases), wait=False)
            self._more = claimed.more
            batch = await self._fitting(claimed.leases, room, least=0)
            leases = [*leases, *batch]
        return leases

    async def _fitting(self, leases: Sequence[Lease], room: int = ANSWER_BYTES, *, least: int = 1) -> list[Lease]:
        """Return the leases that the reply has room for, at least ``least``. The others are released."""
        largest = max((len(lease.payload) for lease in leases), default=0)
        self._session.batch = max(1, min(CLAIMED_AT_ONCE, 2 * self._session.batch, ANSWER_BYTES // max(1, largest)))
        sizes = accumulate(len(lease.payload) for lease in leases)
        kept = max(least, sum(size <= room for size in sizes))
        if kept < len(leases):
            await self._give_back(leases[kept:], "the reply to the worker has no room for it")
            self._more = True
        return list(leases[:kept])

    async def _exchange(self, handed: ResultBatch, given: bytes | None, *, free: int, wait: bool) -> ClaimResult:
        session = self._session
        async with session.exchanging:
            if free and (session.newest is not self._poll or self._is_over()):
                free = 0
            free = self._asked = min(free, session.batch)
            claim_id = given or session.pending or os.urandom(TOKEN_BYTES)
            woken, session.woken = session.woken and free > 0, session.woken and free == 0
            below = await self._below(free)
            exchanging = asyncio.ensure_future(
                session.job_source(self._capabilities).exchange_reports(
                    handed.reports,
                    handed.progress,
                    free=free,
                    free_below=below,
                    woken=woken,
                    claim_id=claim_id,
                    wait=wait,
                )
            )
            session.pending = claim_id if given is None and free else session.pending
            claimed = await self._shielded(exchanging, given)
            session.pending = None if free else session.pending
            if free:  # Without a claim the store's view of this worker is unchanged.
                self._poll.waits = wait and not claimed.leases
            if claimed.leases:
                session.spent = claim_id
                session.hold(claimed.leases)
            return claimed

    async def _shielded(self, exchanging: asyncio.Future[ClaimResult], given: bytes | None) -> ClaimResult:
        """Wait for an exchange. If the poll is cancelled meanwhile, release what the exchange claimed."""
        try:
            return await asyncio.shield(exchanging)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                claimed = await exchanging
                if claimed.leases and given is None:
                    await self._give_back(claimed.leases)
            raise

    async def _claimed_before(self, given: bytes | None) -> Sequence[Lease]:
        """Return the leases of a repeated claim. The worker repeats it, or the store did not answer the first time."""
        session = self._session
        claim_id = given or session.pending
        # A session that has seen a later claim knows that this one is new.
        if claim_id is None or (claim_id == given and not session.fresh and session.spent != given):
            return ()
        await session.read_leases(payloads=True)
        leases = [lease for lease in session.leases.values() if lease.token == claim_id]
        if leases and claim_id == session.pending:
            session.pending = None
            session.hold(leases)
        return leases

    async def _give_back(
        self, leases: Sequence[Lease], reason: str = "the worker disconnected before it got the job"
    ) -> None:
        released = Released(reason)
        await end_leases(self._store, leases, self._in_force.policy, lambda _: released, expired_only=False)
        self._session.release([lease.job_id for lease in leases])

    async def _free(self) -> int:
        """Return how many slots are free, by the request and the leases. Jobs reported in this poll count as ended."""
        if self._request.available_capacity <= 0 or self._state is not WorkerState.ACTIVE:
            return 0
        await self._read_leases()
        if self._room() < self._request.available_capacity and not self._read_again:
            # Another server may have applied results of this worker.
            self._read_again = True
            await self._session.read_leases()
        return max(0, min(self._request.available_capacity, self._room()))

    def _room(self) -> int:
        held = self._session.leases.keys() - {one.job_id for one in self._request.results}
        return self._session.registration.slots - len(held)

    async def _below(self, free: int) -> int:
        """Return how many of the free slots lanes outside the reserve may fill."""
        policy, session = self._in_force.policy, self._session
        if self._request.below is not None:
            return min(self._request.below, free)
        reserved = session.registration.worker(policy).reserved
        if not reserved or not free:
            return free
        await session.read_leases()
        ended = {one.job_id for one in self._request.results}
        held = [lease.lane for lease in session.leases.values() if lease.job_id not in ended]
        return max(0, session.registration.slots - reserved - policy.reserve.outside(held))

    async def _read_leases(self) -> None:
        idle = self._waited and not self._session.leases and not self._session.stopped
        await self._session.read_leases(within=READ_LEASES_IDLE_EVERY if idle else READ_LEASES_EVERY)

    def _has_undelivered(self) -> bool:
        """Return whether a cancel, drain or lower budget is undelivered. Pending cancels and drains shorten polls."""
        pending, drains = self._session.cancels(), self._state is not WorkerState.ACTIVE
        if pending or drains:
            self._until = min(self._until, time.monotonic() + PENDING_POLL_SECONDS)
        lowered = any(
            seconds < self._delivered.budgets.get(job_id, seconds)
            for job_id, seconds in self._session.budgets().items()
        )
        return not self._delivered.cancels.issuperset(pending) or (drains and not self._delivered.drains) or lowered

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _is_over(self) -> bool:
        return self._poll.over or self._is_gone()

    def _is_gone(self) -> bool:
        return self._gone is not None and self._gone.done()

    async def _pause(self, free: int) -> None:
        self._waited = True
        timeout = min(self._left(), READ_LEASES_EVERY if self._session.leases and not free else SLOW_POLL)
        if free and self._next_due is not None:
            timeout = min(timeout, self._next_due + 0.001)
        await wait_until_set(self._poll.wake, max(0.0, timeout))
        self._poll.wake.clear()
