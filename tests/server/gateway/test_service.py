"""The worker gateway, which serves HTTP workers, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from headway.core.errors import JobError, StoreUnavailable, TooMany, WorkerUnknown
from headway.core.job import JobId, RetryRule, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, Policy, Reserve
from headway.core.policy.retry import Ending, Raised, Released, Returned, Snoozed, Stopped, TimedOut, Unknown
from headway.core.worker import WorkerState
from headway.policy_store.catalogue import TaskEntry, read_tasks
from headway.policy_store.current import CurrentPolicy
from headway.protocol.conversion import result_of
from headway.protocol.worker import HeldTask, PollRequest, ProgressUpdate, ResultReport, WorkerHeartbeat
from headway.server.gateway.chores import TimeoutEnforcer, prune_registrations
from headway.server.gateway.long_poll import PollResult
from headway.server.gateway.registry import Registration
from headway.server.gateway.service import NewWorker, WorkerGateway
from headway.stores.base import Exchange, ExchangeReply, JobQuery, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    claim_one,
    reap,
    register,
    state_of,
    submit,
    submit_one,
    the_job,
)
from tests.conftest import OpenStore

SOON = 20.0  # Seconds; a busy machine takes its time. Less than the 30 s that polls may wait.
AT_ONCE = RetryRule("fixed", 0, 0)
NO_RESERVE = Policy(reserve=Reserve(slots=0))

AddWorker = Callable[..., Awaitable["Worker"]]


def report(job_id: JobId, ending: Ending, token: bytes | None = None, seconds: float | None = None) -> ResultReport:
    """Return a report as a server decodes it."""
    made = result_of(ending, job_id, token, seconds)
    if made.result is not msgspec.UNSET:
        made.result = msgspec.json.decode(made.result)
    return made


class Worker:
    """A worker of the gateway, with short forms of its calls."""

    def __init__(self, gateway: WorkerGateway, registration: Registration, token_id: str | None) -> None:
        self.gateway = gateway
        self.registration = registration
        self.worker_id = registration.worker_id
        self.token_id = token_id

    async def poll(self, free: int = 5, gone: asyncio.Future[Any] | None = None, **more: Any) -> PollResult:
        return await self.gateway.poll(
            self.worker_id, PollRequest(available_capacity=free, **more), token_id=self.token_id, gone=gone
        )

    async def claims(self, free: int = 5, **more: Any) -> list[Lease]:
        return list((await self.poll(free, **more)).leases)

    async def claim(self) -> Lease:
        [lease] = await self.claims(1)
        return lease

    async def says(self, job_id: JobId, ending: Any = None, fence: bytes | None = None) -> State | None:
        ended = report(job_id, Returned(b"\x01null") if ending is None else ending, fence)
        [settled] = await self.gateway.finish(self.worker_id, [ended], token_id=self.token_id)
        return settled.status


@pytest.fixture
def policy() -> Policy:
    return NO_RESERVE


@pytest.fixture
async def gateway(store: Store, policy: Policy) -> AsyncIterator[WorkerGateway]:
    gateway = WorkerGateway(store, CurrentPolicy(policy, fixed=True))
    yield gateway
    await gateway.close()


@pytest.fixture
def add_worker(gateway: WorkerGateway) -> AddWorker:
    """Return a function that registers a worker with this gateway, or with another one on the same store."""

    async def register(at: WorkerGateway | None = None, token_id: str | None = None, **more: Any) -> Worker:
        at = gateway if at is None else at
        return Worker(at, await at.register(NewWorker(**more), token_id=token_id), token_id)

    return register


@pytest.fixture
async def other_gateway(store: Store, open_namespace: OpenStore, policy: Policy) -> AsyncIterator[WorkerGateway]:
    """Yield the gateway of another server process. A memory store has only one."""
    shared = await open_namespace("default") if store.abilities.shared else store
    gateway = WorkerGateway(shared, CurrentPolicy(policy, fixed=True))
    yield gateway
    await gateway.close()


def jobs_of(polled: PollResult) -> list[JobId]:
    return [lease.job_id for lease in polled.leases]


async def waiting(poll: asyncio.Task[PollResult], worker: Worker, polls: int = 1) -> asyncio.Task[PollResult]:
    """Wait until this many polls of the worker wait, the last one also in the store if it claims. Return it."""
    async with asyncio.timeout(SOON):
        while not poll.done():
            session = worker.gateway.sessions.get(worker.worker_id)
            under_way = [] if session is None else session.polls
            if len(under_way) == polls and (not under_way[-1].claims or under_way[-1].waits):
                break
            await asyncio.sleep(0.002)
    assert not poll.done()
    return poll


# ---------------------------------------------------------------------- registering


async def test_a_worker_is_known_by_what_it_said(store: Store, add_worker: AddWorker) -> None:
    # R5.15, R5.18, R5.32, R5.45
    worker = await add_worker(capabilities=("gpu", "big"), host="web-1", pid=7, version="9")
    [known] = (await store.diagnose()).workers
    assert (known.worker_id, known.slots, known.offers) == (worker.worker_id, 5, ("gpu", "big", "task:*"))
    assert (known.host, known.pid, known.version, known.state) == ("web-1", 7, "9", WorkerState.ACTIVE)
    assert known.lease_ends_at - known.heartbeat_at == 90_000  # R5.16
    other = await add_worker()
    assert other.worker_id != worker.worker_id


async def test_a_worker_that_names_its_tasks_fills_the_catalogue(
    store: Store, gateway: WorkerGateway, add_worker: AddWorker
) -> None:
    entry = TaskEntry(name="reports.export", lane="low", executor="async")
    await add_worker(tasks=[entry])
    assert await gateway.publish(NewWorker(tasks=[entry]), allowed=False) == ["reports.export"]
    assert await read_tasks(store) == []
    assert await gateway.publish(NewWorker(tasks=[entry])) == []
    assert await read_tasks(store) == [entry]
    [known] = (await store.diagnose()).workers
    assert known.offers == ("task:reports.export",)


async def test_there_are_only_so_many_workers(
    gateway: WorkerGateway, add_worker: AddWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.gateway.service.WORKERS_MAX", 2)
    await add_worker()
    await add_worker()
    with pytest.raises(TooMany):
        await add_worker()


# ---------------------------------------------------------------------- polling


async def test_a_poll_gives_the_best_priority_first_and_fills_what_is_free(store: Store, add_worker: AddWorker) -> None:
    # R5.1, R5.46, R5.49, R5.50, R5.53
    low, high, medium, last = await submit(
        store, a_job(lane="low"), a_job(lane="high"), a_job(lane="medium"), a_job(lane="low")
    )
    worker = await add_worker()
    polled = await worker.poll(3)
    assert jobs_of(polled) == [high, medium, low]
    waits = await the_job(store, last)
    assert (waits.state, waits.started_at, waits.worker_id) == (State.QUEUED, None, None)
    runs = await the_job(store, high)
    assert (runs.state, runs.worker_id) == (State.EXECUTING, worker.worker_id)


async def test_the_server_counts_leases_too(store: Store, add_worker: AddWorker) -> None:
    # R5.50: whatever the worker says, it never has more than its capacity.
    await submit(store, *(a_job() for _ in range(9)))
    worker = await add_worker(slots=3)
    assert len(await worker.claims(100)) == 3
    assert await worker.claims(100) == []
    first = (await store.leases(worker_id=worker.worker_id))[0]
    await worker.says(first.job_id)
    assert len(await worker.claims(100)) == 1


async def test_two_workers_never_get_the_same_task(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway
) -> None:
    # R5.51
    await submit(store, *(a_job() for _ in range(6)))
    one, two = await add_worker(slots=4), await add_worker(other_gateway, slots=4)
    got = await asyncio.gather(one.claims(4), two.claims(4))
    ids = [lease.job_id for leases in got for lease in leases]
    assert len(ids) == len(set(ids)) == 6


async def test_what_a_worker_cannot_do_is_never_claimed_and_hides_nothing(store: Store, add_worker: AddWorker) -> None:
    # R5.14, R5.52, R5.54, R5.55
    blocked = await submit(store, *(a_job(needs=("gpu",)) for _ in range(30)))
    last = await submit_one(store, a_job(needs=("cpu",)))
    worker = await add_worker(capabilities=("cpu",))
    assert jobs_of(await worker.poll(2)) == [last]
    assert {(job.epoch, job.started_at) for job in await store.get(blocked) if job is not None} == {(0, None)}
    able = await add_worker(capabilities=("gpu", "cpu"))
    assert len(await able.claims(5)) == 5


async def test_a_poll_may_offer_less_than_was_registered(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker(capabilities=("cpu", "gpu"))
    gpu = await submit_one(store, a_job(needs=("gpu",)))
    assert await worker.claims(capabilities=frozenset({"cpu"})) == []
    assert jobs_of(await worker.poll()) == [gpu]


async def test_a_worker_that_names_no_tasks_gets_what_others_did_not_know(store: Store, add_worker: AddWorker) -> None:
    job_id = await submit_one(store)
    knows_others = await add_worker(tasks=[TaskEntry(name="other", lane="low", executor="async")])
    lease = await knows_others.claim()
    assert await knows_others.says(lease.job_id, Unknown()) is State.QUEUED
    assert (await the_job(store, job_id)).needs == ("task:reports.export",)
    assert await knows_others.claims() == []
    anything = await add_worker()
    assert jobs_of(await anything.poll()) == [job_id]


async def test_a_worker_that_offers_any_task_uses_an_attempt_on_one_it_does_not_know(
    store: Store, add_worker: AddWorker
) -> None:
    # Given back unharmed, it would get the job again at once, and so on for ever.
    job_id = await submit_one(store, a_job(max_retries=0))
    worker = await add_worker()
    await worker.claim()
    assert await worker.says(job_id, Unknown()) is State.DEAD_LETTER


async def test_the_reserve_holds_for_a_worker_that_knows_nothing_of_it(
    store: Store, add_worker: AddWorker, gateway: WorkerGateway, other_gateway: WorkerGateway
) -> None:
    gateway.in_force.policy = other_gateway.in_force.policy = Policy(reserve=Reserve(slots=2))
    await submit(store, *(a_job(lane="low") for _ in range(6)))
    worker = await add_worker(slots=4)
    assert len(await worker.claims(4)) == 2
    elsewhere = Worker(other_gateway, worker.registration, None)
    assert await elsewhere.claims(4) == []
    high = await submit_one(store, a_job(lane="high"))
    assert jobs_of(await elsewhere.poll(4)) == [high]


async def test_a_worker_may_say_how_much_of_its_room_is_below_the_reserve(store: Store, add_worker: AddWorker) -> None:
    await submit(store, *(a_job(lane="low") for _ in range(6)))
    worker = await add_worker(slots=4)
    assert len(await worker.claims(4, below=1)) == 1


async def test_a_poll_with_the_same_claim_id_gives_the_same_tasks(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway
) -> None:
    # H5: also when it comes to another server, and when the worker has no room for more.
    await submit(store, *(a_job() for _ in range(5)))
    worker = await add_worker(slots=2)
    first = await worker.claims(2, claim_id="claim-0001")
    again = await worker.claims(2, claim_id="claim-0001")
    elsewhere = Worker(other_gateway, worker.registration, None)
    third = await elsewhere.claims(2, claim_id="claim-0001")
    assert len(first) == 2
    assert [(lease.job_id, lease.token) for lease in first] == [(lease.job_id, lease.token) for lease in again]
    assert sorted(lease.job_id for lease in third) == sorted(lease.job_id for lease in first)
    assert {lease.attempts for lease in (*first, *again, *third)} == {1}
    await worker.says(first[0].job_id)
    assert [lease.job_id for lease in await worker.claims(2, claim_id="claim-0001")] == [first[1].job_id]
    assert len(await worker.claims(2, claim_id="claim-0002")) == 1


async def test_a_claim_that_is_repeated_when_nothing_is_left_of_it_is_answered_at_once(
    store: Store, add_worker: AddWorker
) -> None:
    job_id = await submit_one(store)
    worker = await add_worker()
    await worker.claims(claim_id="claim-0001")
    await worker.says(job_id)
    async with asyncio.timeout(SOON):
        assert await worker.claims(wait_seconds=30.0, claim_id="claim-0001") == []


@pytest.mark.usefixtures("woken_only")
async def test_a_long_poll_is_woken_by_a_submit(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    poll = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker)
    job_id = await submit_one(store)
    async with asyncio.timeout(SOON):
        assert jobs_of(await poll) == [job_id]


@pytest.mark.usefixtures("woken_only")
async def test_a_long_poll_that_ends_with_nothing_leaves_nobody_waiting(store: Store, add_worker: AddWorker) -> None:
    # A worker without an open poll must not be woken in place of one that waits.
    idle, waits = await add_worker(), await add_worker()
    assert (await idle.poll(wait_seconds=0.05)).leases == ()
    assert (await idle.poll()).leases == ()
    poll = await waiting(asyncio.create_task(waits.poll(wait_seconds=30.0)), waits)
    job_id = await submit_one(store)
    async with asyncio.timeout(SOON):
        assert jobs_of(await poll) == [job_id]


async def test_a_worker_that_goes_away_gets_nothing_and_harms_nothing(store: Store, add_worker: AddWorker) -> None:
    # Its connection is cut while it waits; then while a claim is under way.
    worker = await add_worker()
    gone = asyncio.get_running_loop().create_future()
    poll = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0, gone=gone)), worker)
    gone.set_result(None)
    async with asyncio.timeout(SOON):
        assert (await poll).leases == ()
    job_id = await submit_one(store)
    assert (await worker.poll(gone=gone)).leases == ()
    job = await the_job(store, job_id)
    assert (job.state, job.attempts, job.started_at, job.worker_id) == (State.QUEUED, 0, None, None)
    assert jobs_of(await worker.poll()) == [job_id]


async def test_what_was_claimed_for_a_worker_that_may_repeat_its_poll_stays_its_own(
    store: Store, add_worker: AddWorker
) -> None:
    job_id = await submit_one(store)
    worker = await add_worker()
    gone = asyncio.get_running_loop().create_future()
    waits = asyncio.create_task(worker.poll(gone=gone, claim_id="claim-0001"))
    await waits
    gone.set_result(None)
    assert jobs_of(await worker.poll(claim_id="claim-0001")) == [job_id]


async def test_a_poll_that_is_cancelled_gives_back_what_it_claims(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    poll = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker)
    [job_id] = await submit(store, a_job())
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    job = await the_job(store, job_id)
    assert (job.state, job.attempts) == (State.QUEUED, 0)
    assert jobs_of(await worker.poll()) == [job_id]


async def test_all_polls_end_when_the_server_stops(store: Store, gateway: WorkerGateway, add_worker: AddWorker) -> None:
    # H7
    worker = await add_worker()
    poll = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker)
    gateway.stop()
    async with asyncio.timeout(SOON):
        assert (await poll).leases == ()


async def test_of_several_polls_only_the_newest_claims(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    older = await waiting(asyncio.create_task(worker.poll(wait_seconds=0.5)), worker)
    newer = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker, 2)
    job_id = await submit_one(store)
    async with asyncio.timeout(SOON):
        assert jobs_of(await newer) == [job_id]
        assert (await older).leases == ()


async def test_a_poll_may_take_the_place_of_those_before(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    older = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker)
    newer = asyncio.create_task(worker.poll(wait_seconds=30.0, takes_over=True))
    async with asyncio.timeout(SOON):
        assert (await older).leases == ()
        job_id = await submit_one(store)
        assert jobs_of(await newer) == [job_id]


async def test_there_are_only_so_many_polls_of_one_worker(
    add_worker: AddWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.gateway.service.POLLS_MAX", 1)
    worker = await add_worker()
    poll = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker)
    with pytest.raises(TooMany):
        await worker.poll()
    poll.cancel()


async def test_a_poll_hands_in_and_claims_in_one_go(store: Store, add_worker: AddWorker) -> None:
    await submit(store, a_job(), a_job())
    worker = await add_worker(slots=1)
    lease = await worker.claim()
    ended = [report(lease.job_id, Returned(b"\x017"), lease.token)]
    steps = [ProgressUpdate(task_id="unknown", fraction=0.5)]
    polled = await worker.poll(1, results=ended, progress=steps)
    assert [(one.task_id, one.status) for one in polled.settled] == [(lease.job_id, State.COMPLETED)]
    assert len(polled.leases) == 1
    assert (await the_job(store, lease.job_id)).result == b"\x017"
    moved = polled.leases[0]
    await worker.poll(
        0, progress=[ProgressUpdate(task_id=moved.job_id, fraction=0.5, note="half", fence=moved.token.hex())]
    )
    assert (await the_job(store, moved.job_id)).progress == 0.5


class LossyStore(MemoryStore):
    """A store whose replies can be lost after their effect."""

    lose = False

    async def exchange(self, request: Exchange) -> ExchangeReply:
        answer = await super().exchange(request)
        if self.lose and answer.leases:
            self.lose = False
            raise StoreUnavailable("the reply was lost")
        return answer


@pytest.mark.parametrize("claim_id", [None, "claim-0001"])
async def test_a_reply_that_the_store_lost_is_given_by_the_next_poll(clock: ManualClock, claim_id: str | None) -> None:
    # W10, H6: whether or not the worker can tell that its poll is a repeat.
    store = LossyStore(clock=clock)
    gateway = WorkerGateway(store, CurrentPolicy(NO_RESERVE, fixed=True))
    ids = await submit(store, a_job(), a_job())
    worker = Worker(gateway, await gateway.register(NewWorker(slots=2)), None)
    store.lose = True
    with pytest.raises(StoreUnavailable):
        await worker.poll(2, claim_id=claim_id)
    leases = await worker.claims(2, claim_id=claim_id)
    assert [lease.job_id for lease in leases] == ids
    assert {lease.attempts for lease in leases} == {1}
    assert await worker.claims(2) == []
    await gateway.close()


class LeaseReadRecorder(MemoryStore):
    """A store that records whether reads of leases requested payloads."""

    def __init__(self, *, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.asked: list[bool] = []

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000, payloads: bool = True) -> list[Lease]:
        self.asked.append(payloads)
        return await super().leases(worker_id=worker_id, limit=limit, payloads=payloads)


async def test_payloads_are_read_again_only_for_a_repeated_claim(clock: ManualClock) -> None:
    store = LeaseReadRecorder(clock=clock)
    gateway = WorkerGateway(store, CurrentPolicy(NO_RESERVE, fixed=True))
    await submit(store, a_job(payload=b"\x01[1]"), a_job(payload=b"\x01[2]"))
    worker = Worker(gateway, await gateway.register(NewWorker(slots=2)), None)
    await worker.claims(1)
    assert store.asked
    assert set(store.asked) == {False}
    for _ in range(2):
        assert [lease.payload for lease in await worker.claims(1, claim_id="claim-0001")] == [b"\x01[2]"]
    store.asked.clear()
    assert await gateway.leave(worker.worker_id) == 2
    assert set(store.asked) == {False}
    await gateway.close()


# ---------------------------------------------------------------------- cancels and drains


@pytest.mark.usefixtures("woken_only")
async def test_a_cancel_reaches_a_worker_that_waits_at_once(store: Store, add_worker: AddWorker) -> None:
    job_id = await submit_one(store)
    worker = await add_worker()
    await worker.claim()
    news = await waiting(asyncio.create_task(worker.poll(0, wait_seconds=30.0)), worker)
    await store.cancel([job_id])
    async with asyncio.timeout(SOON):
        assert list((await news).cancel) == [job_id]
    # It is named again until it is reported, and polls wait a second at most meanwhile.
    async with asyncio.timeout(SOON):
        assert list((await worker.poll(0, wait_seconds=30.0)).cancel) == [job_id]
    assert await worker.says(job_id, Stopped()) is State.CANCELLED
    assert list((await worker.poll(0)).cancel) == []


@pytest.mark.usefixtures("woken_only")
async def test_a_cancel_reaches_both_parts_of_a_worker_at_once(store: Store, add_worker: AddWorker) -> None:
    # One of its processes polls for jobs, another only for news.
    job_id = await submit_one(store)
    worker = await add_worker()
    await worker.claim()
    jobs = await waiting(asyncio.create_task(worker.poll(4, wait_seconds=30.0)), worker)
    news = await waiting(asyncio.create_task(worker.poll(0, wait_seconds=30.0)), worker, 2)
    await store.cancel([job_id])
    async with asyncio.timeout(SOON):
        assert [list((await one).cancel) for one in (jobs, news)] == [[job_id], [job_id]]


async def test_a_cancel_reaches_a_worker_that_polls_now_and_then(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It polls every second; then what was seen at the last poll is looked at again.
    monkeypatch.setattr("headway.server.gateway.long_poll.READ_LEASES_EVERY", 0.0)
    job_id = await submit_one(store)
    worker = await add_worker()
    await worker.claim()
    await store.cancel([job_id])
    assert list((await worker.poll()).cancel) == [job_id]
    assert list((await Worker(other_gateway, worker.registration, None).poll()).cancel) == [job_id]
    assert list((await worker.gateway.beat(worker.worker_id, WorkerHeartbeat())).cancel) == [job_id]


async def test_a_job_that_fails_while_somebody_cancels_it_is_cancelled(store: Store, add_worker: AddWorker) -> None:
    job_id = await submit_one(store)
    worker = await add_worker()
    lease = await worker.claim()
    await store.cancel([job_id])
    assert await worker.says(job_id, Raised(BOOM), lease.token) is State.CANCELLED
    assert await worker.says(job_id, Raised(BOOM), lease.token) is State.CANCELLED


async def test_a_worker_that_drains_gets_nothing_and_finishes_what_it_has(store: Store, add_worker: AddWorker) -> None:
    # R5.19, R5.56
    first, second = await submit(store, a_job(), a_job())
    worker = await add_worker()
    await worker.claim()
    await worker.gateway.drain(worker.worker_id)
    polled = await worker.poll()
    assert (polled.leases, polled.state) == ((), WorkerState.DRAINING)
    assert (await worker.gateway.beat(worker.worker_id, WorkerHeartbeat())).state is WorkerState.DRAINING
    assert await worker.says(first) is State.COMPLETED
    assert await state_of(store, second) is State.QUEUED


async def test_a_heartbeat_may_say_that_the_worker_drains(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    await submit_one(store)
    assert (
        await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(status="draining"))
    ).state is WorkerState.DRAINING
    assert await worker.claims() == []


@pytest.mark.usefixtures("woken_only")
async def test_a_drain_ends_a_poll_that_waits(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    poll = await waiting(asyncio.create_task(worker.poll(wait_seconds=30.0)), worker)
    await store.drain(worker.worker_id)
    async with asyncio.timeout(SOON):
        assert (await poll).state is WorkerState.DRAINING
    # Told once, it may go on waiting for cancels while it finishes what it has.
    poll = asyncio.create_task(worker.poll(wait_seconds=0.2))
    assert await asyncio.wait_for(poll, SOON)


async def test_a_worker_that_leaves_gives_back_what_it_has_unharmed(store: Store, add_worker: AddWorker) -> None:
    job_id = await submit_one(store)
    worker = await add_worker()
    await worker.claim()
    assert await worker.gateway.leave(worker.worker_id) == 1
    assert await worker.gateway.leave(worker.worker_id) == 0
    job = await the_job(store, job_id)
    assert (job.state, job.attempts, job.crashes) == (State.QUEUED, 0, 0)
    with pytest.raises(WorkerUnknown):
        await worker.poll()


# ---------------------------------------------------------------------- dead, unknown and foreign workers


async def test_a_dead_worker_must_register_anew(store: Store, add_worker: AddWorker, clock: ManualClock) -> None:
    # R5.16, R5.56, R5.58, R5.74, R5.75
    job_id = await submit_one(store, a_job(retry=AT_ONCE))
    worker = await add_worker()
    lease = await worker.claim()
    clock.advance(seconds=89)
    assert await reap(store) == []
    clock.advance(seconds=1)
    assert await reap(store) == [job_id]
    with pytest.raises(WorkerUnknown):
        await worker.poll()
    with pytest.raises(WorkerUnknown):
        await worker.gateway.beat(worker.worker_id, WorkerHeartbeat())
    with pytest.raises(WorkerUnknown):
        await worker.gateway.drain(worker.worker_id)
    job = await the_job(store, job_id)
    assert (job.attempts, job.crashes) == (1, 1)
    anew = await add_worker()
    assert jobs_of(await anew.poll()) == [job_id]
    # R5.57, H2: what the dead one says now changes nothing.
    assert await worker.says(job_id, fence=lease.token) is None
    assert await worker.says(job_id) is None
    assert await state_of(store, job_id) is State.EXECUTING


async def test_a_result_that_comes_late_counts_while_nobody_else_has_the_job(
    store: Store, add_worker: AddWorker, clock: ManualClock
) -> None:
    # H3
    job_id = await submit_one(store)
    worker = await add_worker()
    lease = await worker.claim()
    clock.advance(seconds=600)
    assert await worker.says(job_id, fence=lease.token) is State.COMPLETED


async def test_a_heartbeat_keeps_worker_and_leases(store: Store, add_worker: AddWorker, clock: ManualClock) -> None:
    # R5.16, R5.48
    await submit_one(store)
    worker = await add_worker()
    await worker.claim()
    for _ in range(5):
        clock.advance(seconds=60)
        await worker.gateway.beat(worker.worker_id, WorkerHeartbeat())
    assert await reap(store) == []


async def test_an_unknown_worker_is_told_to_register(gateway: WorkerGateway) -> None:
    # R5.56
    with pytest.raises(WorkerUnknown):
        await gateway.poll("stranger", PollRequest(available_capacity=1))
    with pytest.raises(WorkerUnknown):
        await gateway.finish("stranger", [report(JobId("x"), Returned(None))])


async def test_nobody_speaks_for_a_worker_of_another_token(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway
) -> None:
    # R5.106, H4
    job_id = await submit_one(store)
    worker = await add_worker(token_id="a")
    lease = await worker.claim()
    for thief in (
        Worker(worker.gateway, worker.registration, "b"),
        Worker(worker.gateway, worker.registration, None),
        Worker(other_gateway, worker.registration, "b"),
    ):
        with pytest.raises(WorkerUnknown):
            await thief.poll()
        with pytest.raises(WorkerUnknown):
            await thief.says(job_id, fence=lease.token)
        with pytest.raises(WorkerUnknown):
            await thief.gateway.beat(worker.worker_id, WorkerHeartbeat(), token_id=thief.token_id)
        with pytest.raises(WorkerUnknown):
            await thief.gateway.drain(worker.worker_id, token_id=thief.token_id)
        with pytest.raises(WorkerUnknown):
            await thief.gateway.leave(worker.worker_id, token_id=thief.token_id)
    other = await add_worker(token_id="b")
    assert await other.says(job_id, fence=lease.token) is None
    assert await other.says(job_id) is None
    job = await the_job(store, job_id)
    assert (job.state, job.worker_id) == (State.EXECUTING, worker.worker_id)
    assert await worker.says(job_id, fence=lease.token) is State.COMPLETED


async def test_a_worker_may_come_to_any_server(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway
) -> None:
    first, second = await submit(store, a_job(), a_job())
    worker = await add_worker(token_id="a", capabilities=("gpu",))
    elsewhere = Worker(other_gateway, worker.registration, "a")
    assert [lease.job_id for lease in await elsewhere.claims(1)] == [first]
    assert await worker.says(first) is State.COMPLETED
    assert [lease.job_id for lease in await worker.claims(1)] == [second]
    await elsewhere.gateway.beat(worker.worker_id, WorkerHeartbeat(), token_id="a")
    assert await elsewhere.says(second) is State.COMPLETED


# ---------------------------------------------------------------------- results


ENDINGS: dict[str, tuple[Any, State]] = {
    "completed": (Returned(b"\x01null"), State.COMPLETED),
    "failed, to run again": (Raised(BOOM), State.QUEUED),
    "failed for good": (Raised(JobError("ValueError", "no", retriable=False)), State.FAILED),  # R5.79
    "timed out": (TimedOut(BOOM), State.QUEUED),
    "released": (Released(), State.QUEUED),
    "snoozed": (Snoozed(5_000), State.QUEUED),
    "cancelled": (Stopped(), State.CANCELLED),
}


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("name", ENDINGS)
async def test_the_same_result_twice_gets_the_same_answer(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway, name: str, fenced: bool
) -> None:
    # R5.47, H1, H6
    ending, state = ENDINGS[name]
    job_id = await submit_one(store)
    worker = await add_worker()
    lease = await worker.claim()
    fence = lease.token if fenced else None
    assert await worker.says(job_id, ending, fence) is state
    before = await the_job(store, job_id)
    elsewhere = Worker(other_gateway, worker.registration, None)
    if not fenced and before.history == () and state is State.QUEUED:
        assert await worker.says(job_id, ending) is None  # Nothing is left to know it by.
    else:
        assert await worker.says(job_id, ending, fence) is state
        assert await elsewhere.says(job_id, ending, fence) is state
    after = await the_job(store, job_id)
    assert (after.state, after.attempts, after.history) == (before.state, before.attempts, before.history)


@pytest.mark.parametrize("fenced", [True, False])
async def test_another_result_for_the_same_lease_is_refused(store: Store, add_worker: AddWorker, fenced: bool) -> None:
    # H1
    job_id = await submit_one(store)
    worker = await add_worker()
    lease = await worker.claim()
    fence = lease.token if fenced else None
    assert await worker.says(job_id, Returned(b"\x01null"), fence) is State.COMPLETED
    assert await worker.says(job_id, Raised(BOOM), fence) is None
    assert await worker.says(job_id, Stopped(), fence) is None
    assert await state_of(store, job_id) is State.COMPLETED


async def test_a_wrong_fence_counts_for_nothing(store: Store, add_worker: AddWorker) -> None:
    # R5.57
    job_id = await submit_one(store)
    worker = await add_worker()
    await worker.claim()
    assert await worker.says(job_id, fence=b"\1" * 16) is None
    assert await worker.says(job_id, fence=b"") is None
    assert await worker.says(JobId("unknown")) is None
    assert await state_of(store, job_id) is State.EXECUTING


async def test_results_are_answered_one_by_one(store: Store, add_worker: AddWorker) -> None:
    await submit(store, a_job(), a_job())
    worker = await add_worker()
    one, two = await worker.claims(2)
    ended = [
        report(one.job_id, Returned(None), one.token),
        report(JobId("unknown"), Returned(None), b"\1" * 16),
        report(two.job_id, Raised(BOOM), two.token),
        report(one.job_id, Raised(BOOM), one.token),  # Of two words on one job the first counts.
    ]
    settled = await worker.gateway.finish(worker.worker_id, ended)
    assert [one.status for one in settled] == [State.COMPLETED, None, State.QUEUED, State.COMPLETED]


async def test_failures_and_deaths_are_counted_apart_until_the_last_retry(store: Store, add_worker: AddWorker) -> None:
    # R5.75, R5.78
    job_id = await submit_one(store, a_job(max_retries=1, retry=AT_ONCE))
    worker = await add_worker()
    for state in (State.QUEUED, State.DEAD_LETTER):
        lease = await worker.claim()
        assert await worker.says(job_id, Raised(BOOM), lease.token) is state
    job = await the_job(store, job_id)
    assert (job.reason, job.attempts, job.crashes) == ("max_retries_exceeded", 2, 0)


async def test_a_transient_job_is_only_counted(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway
) -> None:
    await submit(store, a_job(persist=False), a_job(persist=False))
    worker = await add_worker()
    one, two = await worker.claims(2)
    assert (one.token, two.token) == (b"", b"")
    assert await worker.says(one.job_id) is State.COMPLETED
    elsewhere = Worker(other_gateway, worker.registration, None)
    assert await elsewhere.says(two.job_id, Raised(BOOM), fence=b"") is State.FAILED
    totals = (await store.stats()).totals
    assert (totals["transient_completed"], totals["transient_failed"]) == (1, 1)


# ---------------------------------------------------------------------- heartbeats


async def test_leases_that_a_heartbeat_does_not_name_go_back_after_seconds(
    store: Store, add_worker: AddWorker, clock: ManualClock
) -> None:
    # R5.104: the reply to a poll was lost, so the worker never heard of its task.
    known, unknown = await submit(store, a_job(), a_job())
    worker = await add_worker()
    lease, _ = await worker.claims(2)
    clock.advance(seconds=9)
    await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=[HeldTask(lease.job_id, lease.token.hex())]))
    assert await state_of(store, unknown) is State.EXECUTING
    clock.advance(seconds=1)
    await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=[HeldTask(lease.job_id)]))
    assert await state_of(store, known) is State.EXECUTING
    job = await the_job(store, unknown)
    assert (job.state, job.attempts) == (State.QUEUED, 0)


async def test_a_heartbeat_tells_what_was_lost(store: Store, add_worker: AddWorker) -> None:
    worker = await add_worker()
    kept = await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=[HeldTask("gone", "01" * 16)]))
    assert (list(kept.lost), list(kept.cancel)) == (["gone"], ["gone"])


async def test_a_heartbeat_that_was_overtaken_renews_nothing(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway, clock: ManualClock
) -> None:
    job_id = await submit_one(store)
    worker = await add_worker()
    lease = await worker.claim()
    clock.advance(seconds=20)
    named = [HeldTask(lease.job_id, lease.token.hex())]
    assert not (await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=named, seq=2))).ignored
    # The first one was held up on its way, and it is older than the claim: it must not send the job back.
    assert (await other_gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=[], seq=1))).ignored
    assert not (
        await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=named, seq=2))
    ).ignored  # No reply had come: it is repeated.
    assert await state_of(store, job_id) is State.EXECUTING
    clock.advance(seconds=80)
    assert (await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=[], seq=1))).ignored
    clock.advance(seconds=10)
    assert await reap(store) == [job_id]
    with pytest.raises(WorkerUnknown):
        await worker.gateway.beat(worker.worker_id, WorkerHeartbeat(tasks=[], seq=1))


# ---------------------------------------------------------------------- timeouts


async def test_a_job_that_runs_past_its_own_timeout_is_ended_by_the_server(
    store: Store,
    gateway: WorkerGateway,
    other_gateway: WorkerGateway,
    add_worker: AddWorker,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # R5.17, R5.71, R5.72, R5.73, R5.76, R5.77
    monkeypatch.setattr("headway.server.gateway.long_poll.READ_LEASES_EVERY", 0.0)
    short = await submit_one(store, a_job(timeout_ms=10_000, retry=AT_ONCE))
    long = await submit_one(store, a_job(timeout_ms=60_000))
    worker = await add_worker()
    leases = {lease.job_id: lease for lease in await worker.claims(2)}
    overtimes = [TimeoutEnforcer(one.store, one.in_force, one.registry) for one in (gateway, other_gateway)]
    clock.advance(seconds=14.9)
    for overtime in overtimes:
        await overtime()
    assert await state_of(store, short) is State.EXECUTING
    clock.advance(seconds=0.1)
    for overtime in overtimes:
        await overtime()
    assert [overtime.ended for overtime in overtimes] == [1, 0]
    job = await the_job(store, short)
    assert (job.state, job.attempts, job.timeout_ms, job.reason) == (State.QUEUED, 1, 15_000, "timeout")
    assert await state_of(store, long) is State.EXECUTING
    # Its worker is told, whichever server it asks, and what it says of the job counts for nothing.
    kept = await other_gateway.beat(worker.worker_id, WorkerHeartbeat())
    assert (list(kept.cancel), list(kept.lost)) == ([short], [short])
    polled = await gateway.poll(worker.worker_id, PollRequest(available_capacity=0))
    assert (list(polled.cancel), list(polled.lost)) == ([short], [short])
    assert await worker.says(short, fence=leases[short].token) is None
    assert await state_of(store, short) is State.QUEUED
    assert list((await gateway.poll(worker.worker_id, PollRequest(available_capacity=0))).cancel) == []
    # It gets the job again: then nothing is said that it could take for the new run.
    [again] = await Worker(other_gateway, worker.registration, None).claims(1)
    assert again.job_id == short
    assert list((await other_gateway.beat(worker.worker_id, WorkerHeartbeat())).cancel) == []
    assert await worker.says(short) is State.COMPLETED
    assert await worker.says(long) is State.COMPLETED
    clock.advance(seconds=61)
    await overtimes[0]()
    assert await gateway.registry.stopped(worker.worker_id) == set()


async def test_a_poll_that_waits_hears_that_a_job_was_ended(
    store: Store,
    gateway: WorkerGateway,
    add_worker: AddWorker,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.server.gateway.long_poll.READ_LEASES_EVERY", 0.05)
    job_id = await submit_one(store, a_job(timeout_ms=1_000))
    worker = await add_worker()
    await worker.claim()
    poll = await waiting(asyncio.create_task(worker.poll(0, wait_seconds=30.0)), worker)
    clock.advance(seconds=6)
    await TimeoutEnforcer(store, gateway.in_force, gateway.registry)()
    async with asyncio.timeout(SOON):
        assert list((await poll).lost) == [job_id]


async def test_workers_of_the_store_itself_keep_their_own_time(
    store: Store, gateway: WorkerGateway, clock: ManualClock
) -> None:
    await submit_one(store, a_job(timeout_ms=1_000))
    await register(store)
    await claim_one(store)
    clock.advance(seconds=60)
    overtime = TimeoutEnforcer(store, gateway.in_force, gateway.registry)
    await overtime()
    assert overtime.ended == 0


async def test_registrations_go_a_while_after_their_workers(
    store: Store, gateway: WorkerGateway, add_worker: AddWorker, clock: ManualClock
) -> None:
    gone, lives = await add_worker(), await add_worker()
    await gateway.beat(gone.worker_id, WorkerHeartbeat(seq=1))
    forget = partial(prune_registrations, store, gateway.registry)
    await forget()
    clock.advance(seconds=120)
    await gateway.beat(lives.worker_id, WorkerHeartbeat())
    await store.prune(BUILT_IN.keep)
    await forget()
    assert len(await gateway.registry.all()) == 2
    clock.advance(seconds=40)
    await gateway.beat(lives.worker_id, WorkerHeartbeat())
    await forget()
    assert [one.worker_id for one in await gateway.registry.all()] == [lives.worker_id]
    assert await store.read("http_beat") == []
    with pytest.raises(WorkerUnknown):
        await gone.poll()


async def test_what_jobs_took_is_learned(store: Store, gateway: WorkerGateway, add_worker: AddWorker) -> None:
    worker = await add_worker()
    job_id = await submit_one(store)
    await worker.claim()
    await gateway.finish(worker.worker_id, [report(job_id, Returned(None), seconds=-1.0)])
    await gateway.learn()
    assert gateway.durations.expected("reports.export") < 0.1


async def test_no_job_is_lost_or_run_twice_among_many_workers(
    store: Store, add_worker: AddWorker, other_gateway: WorkerGateway
) -> None:
    # I1, I2
    ids = set(await submit(store, *(a_job() for _ in range(60))))
    workers = [await add_worker(slots=4) for _ in range(2)] + [
        await add_worker(other_gateway, slots=4) for _ in range(2)
    ]
    ran: list[JobId] = []

    async def work(worker: Worker) -> None:
        ended: list[ResultReport] = []
        while True:
            polled = await worker.poll(4, results=ended, wait_seconds=0.01)
            ran.extend(jobs_of(polled))
            if not polled.leases:
                return
            ended = [report(lease.job_id, Returned(None), lease.token) for lease in polled.leases]

    async with asyncio.timeout(30):
        await asyncio.gather(*(work(worker) for worker in workers))
    assert sorted(ran) == sorted(ids)
    assert len(await store.find(JobQuery(states=(State.COMPLETED,)))) == 60
