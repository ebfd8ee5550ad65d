"""Builders of jobs and workers, and short forms of store calls, for tests of stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count
from uuid import UUID

from headway.core.errors import JobError
from headway.core.job import JobId, JobRecord, NewJob, RetryRule, State
from headway.core.lease import Lease, Report, ReportStatus
from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Crashed, Ending, Raised, Returned, judge
from headway.core.snapshot import Plan
from headway.core.worker import WorkerInfo
from headway.stores.base import Exchange, ExchangeReply, Heartbeat, HeartbeatReply, Store

LEASE_MS = 90_000
CONFIRM_MS = 10_000
BOOM = JobError("ValueError", "no such account", "Traceback: …")

_numbers: Iterator[int] = count(1)


def an_id(number: int | None = None) -> JobId:
    return JobId(str(UUID(int=next(_numbers) if number is None else number)))


def a_claim_id() -> bytes:
    return next(_numbers).to_bytes(16, "big")


def a_job(
    job_id: str | None = None,
    *,
    task: str = "reports.export",
    payload: bytes = b"[]",
    lane: str = "medium",
    max_retries: int = 3,
    timeout_ms: int = 60_000,
    needs: tuple[str, ...] = (),
    rung: str | None = None,
    tenant: str | None = None,
    retry: RetryRule | None = None,
    delay_ms: int = 0,
    due_at: int | None = None,
    expires_ms: int | None = None,
    idempotency_key: str | None = None,
    idempotency_ms: int = 86_400_000,
    unique_key: str | None = None,
    trace_id: str | None = None,
    persist: bool = True,
    limits: tuple[str, ...] = (),
) -> NewJob:
    return NewJob(
        JobId(job_id) if job_id is not None else an_id(),
        task,
        payload,
        sha256(task.encode() + b"\0" + payload).digest(),
        lane,
        max_retries,
        timeout_ms,
        needs,
        rung,
        tenant,
        retry,
        delay_ms,
        due_at,
        expires_ms,
        idempotency_key,
        idempotency_ms,
        unique_key,
        trace_id,
        persist,
        limits,
    )


def a_worker(
    worker_id: str = "w1", *, slots: int = 5, reserved: int = 1, offers: tuple[str, ...] = (), version: str = "1.0"
) -> WorkerInfo:
    return WorkerInfo(
        worker_id=worker_id, host="host", pid=1, slots=slots, reserved=reserved, offers=offers, version=version
    )


async def register(
    store: Store,
    worker_id: str = "w1",
    *,
    slots: int = 5,
    reserved: int = 1,
    offers: tuple[str, ...] = (),
    lease_ms: int = LEASE_MS,
) -> WorkerInfo:
    worker = a_worker(worker_id, slots=slots, reserved=reserved, offers=offers)
    await store.renew(Heartbeat(worker, lease_ms, CONFIRM_MS, register=True))
    return worker


async def beat(
    store: Store,
    worker: WorkerInfo | str = "w1",
    *,
    held: Sequence[Lease] = (),
    lease_ms: int = LEASE_MS,
    confirm_ms: int = CONFIRM_MS,
) -> HeartbeatReply:
    worker = a_worker(worker) if isinstance(worker, str) else worker
    return await store.renew(Heartbeat(worker, lease_ms, confirm_ms, [(lease.job_id, lease.token) for lease in held]))


async def ask(
    store: Store,
    worker_id: str = "w1",
    *,
    free: int = 5,
    free_below: int | None = None,
    offers: tuple[str, ...] = (),
    claim_id: bytes | None = None,
    finished: Sequence[Report] = (),
    wait: bool = False,
    policy: Policy = BUILT_IN,
) -> ExchangeReply:
    """Send one exchange, with the plan that the policy makes from the store's snapshot."""
    below = free if free_below is None else free_below
    return await store.exchange(
        Exchange(
            worker_id,
            a_claim_id() if claim_id is None else claim_id,
            finished,
            plan(await store.snapshot(), free=free, free_below=below, offers=frozenset(offers), policy=policy),
            wait=wait,
        )
    )


async def claim(
    store: Store,
    worker_id: str = "w1",
    *,
    free: int = 5,
    free_below: int | None = None,
    offers: tuple[str, ...] = (),
    claim_id: bytes | None = None,
) -> list[Lease]:
    answer = await ask(store, worker_id, free=free, free_below=free_below, offers=offers, claim_id=claim_id)
    return list(answer.leases)


async def claim_one(store: Store, worker_id: str = "w1", *, offers: tuple[str, ...] = ()) -> Lease:
    [lease] = await claim(store, worker_id, free=1, offers=offers)
    return lease


async def claimed_ids(
    store: Store, worker_id: str = "w1", *, free: int = 5, free_below: int | None = None, offers: tuple[str, ...] = ()
) -> list[JobId]:
    return [lease.job_id for lease in await claim(store, worker_id, free=free, free_below=free_below, offers=offers)]


async def pump(store: Store) -> None:
    """Make jobs eligible that have fallen due, as any exchange does."""
    await store.exchange(Exchange(None))


async def report(store: Store, *reports: Report) -> list[ReportStatus]:
    """Send reports. Return one status for each, in order."""
    refused = dict((await store.exchange(Exchange(None, finished=reports))).refused)
    return [refused.get(given.job_id, ReportStatus.OK) for given in reports]


async def end(store: Store, lease: Lease, ending: Ending | None = None, *, policy: Policy = BUILT_IN) -> ReportStatus:
    """End a lease as core judges it. By default its task has returned."""
    [answer] = await report(store, judge(Returned(b"null") if ending is None else ending, lease, policy))
    return answer


async def reap(store: Store) -> list[JobId]:
    """End the leases of workers past their deadline, as the chore does. Return the jobs that were moved."""
    moved = []
    for lease in await store.leases():
        given = judge(Crashed("lease expired"), lease, BUILT_IN)._replace(expired_only=True)
        if await report(store, given) == [ReportStatus.OK]:
            moved.append(lease.job_id)
    return moved


async def the_job(store: Store, job_id: JobId) -> JobRecord:
    [job] = await store.get([job_id])
    assert job is not None
    return job


async def state_of(store: Store, job_id: JobId) -> State:
    return (await the_job(store, job_id)).state


async def submit(store: Store, *jobs: NewJob) -> list[JobId]:
    return [answer.job_id for answer in await store.submit(jobs)]


async def submit_one(store: Store, job: NewJob | None = None) -> JobId:
    [job_id] = await submit(store, a_job() if job is None else job)
    return job_id


async def ended_job(store: Store, state: State, job: NewJob | None = None) -> JobId:
    """Submit a job and end it in this state, with the worker ``w1``."""
    job = a_job() if job is None else job
    job_id = await submit_one(store, job)
    if state is State.CANCELLED:
        await store.cancel([job_id])
        return job_id
    await register(store)
    lease = await claim_one(store, offers=job.needs)
    assert lease.job_id == job_id
    match state:
        case State.COMPLETED:
            await end(store, lease)
        case State.FAILED:
            await end(store, lease, Raised(JobError("ValueError", "bad", retriable=False)))
        case _:
            await end(store, lease._replace(attempts=job.max_retries + 1), Raised(BOOM))
    assert await state_of(store, job_id) is state
    return job_id


def an_empty_plan(free: int = 5) -> Plan:
    return Plan((), free, free)
