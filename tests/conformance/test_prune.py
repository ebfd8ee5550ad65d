"""Pruning and purging: an ended job is removed when its time is over, a waiting job never."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.job import State
from headway.core.policy.document import DAY, HOUR, Keep
from headway.core.policy.retry import Raised
from headway.core.worker import WorkerState
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    LEASE_MS,
    a_job,
    an_id,
    claim,
    claim_one,
    claimed_ids,
    end,
    ended_job,
    reap,
    register,
    state_of,
    submit,
    submit_one,
)
from tests.conftest import OpenStore

KEEP = Keep(completed_ms=1_000, failed_ms=2_000, cancelled_ms=3_000, dead_letter_ms=4_000)
KEPT_MS = {
    State.COMPLETED: 1_000,
    State.FAILED: 2_000,
    State.CANCELLED: 3_000,
    State.DEAD_LETTER: 4_000,
}


@pytest.mark.parametrize("state", KEPT_MS)
async def test_an_ended_job_is_kept_for_its_time_from_the_end_and_no_longer(
    store: Store, clock: ManualClock, state: State
) -> None:
    # R1.39, R5.25, R2.70: by age
    clock.advance(ms=50)
    job_id = await ended_job(store, state)
    clock.advance(ms=KEPT_MS[state] - 1)
    assert await store.prune(KEEP) == 0
    assert await state_of(store, job_id) is state
    clock.advance(ms=1)
    assert await store.prune(KEEP) == 1
    assert await store.get([job_id]) == [None]
    assert await store.find(JobQuery()) == []


@pytest.mark.parametrize("state", KEPT_MS)
async def test_of_more_ended_jobs_than_a_state_keeps_the_oldest_go(
    store: Store, clock: ManualClock, state: State
) -> None:
    # R2.70: by count
    ended = []
    for _ in range(7):
        clock.advance(ms=10)
        ended.append(await ended_job(store, state))
    others = [await ended_job(store, other) for other in KEPT_MS if other is not state]
    waiting = await submit_one(store)
    bound = replace(Keep(), **{f"{state.value}_max": 3})
    assert await store.prune(Keep()) == 0  # Without a bound all stay.
    assert await store.prune(replace(bound, **{f"{state.value}_max": 7})) == 0
    assert await store.prune(bound, limit=3) == 3  # In batches, as everything that is pruned.
    assert await store.prune(bound, limit=3) == 1
    assert await store.prune(bound) == 0
    kept = {job.job_id for job in await store.find(JobQuery())}
    assert kept == {*ended[4:], *others, waiting}
    clock.advance(ms=10)
    newest = await ended_job(store, state, a_job(lane="high"))
    assert await store.prune(bound) == 1
    assert {job.job_id for job in await store.find(JobQuery(states=(state,)))} == {*ended[5:], newest}


async def test_a_bound_on_ended_jobs_is_each_namespaces_own(open_namespace: OpenStore, clock: ManualClock) -> None:
    # R2.70
    one, other = await open_namespace("one"), await open_namespace("other")
    for store in (one, other):
        for state in (State.COMPLETED, State.FAILED):
            clock.advance(ms=10)
            await ended_job(store, state)
            await ended_job(store, state)
    assert await one.prune(Keep(completed_max=1, failed_max=1)) == 2
    assert (len(await one.find(JobQuery())), len(await other.find(JobQuery()))) == (2, 4)


async def test_retention_counts_from_the_end_and_not_from_the_submit(store: Store, clock: ManualClock) -> None:
    # R1.39
    job_id = await submit_one(store)
    await register(store, lease_ms=10 * DAY)
    clock.advance(ms=2 * DAY)
    lease = await claim_one(store)
    clock.advance(ms=2 * DAY)
    await end(store, lease)
    clock.advance(ms=DAY - 1)
    await store.prune(Keep())
    assert await state_of(store, job_id) is State.COMPLETED


async def test_live_jobs_are_never_pruned(store: Store, clock: ManualClock) -> None:
    # R1.39
    waiting, running, retrying = await submit(store, a_job(lane="low"), a_job(), a_job())
    delayed = await submit_one(store, a_job(delay_ms=10_000 * DAY))
    await register(store)
    await claim_one(store)
    await end(store, await claim_one(store), Raised(BOOM))
    clock.advance(ms=1_000 * DAY)
    assert await store.prune(Keep(0, 0, 0, 0, 0)) == 0
    states = [await state_of(store, job_id) for job_id in (waiting, running, retrying, delayed)]
    assert states == [State.QUEUED, State.EXECUTING, State.QUEUED, State.QUEUED]


async def test_dead_letters_are_kept_for_thirty_days_by_default(store: Store, clock: ManualClock) -> None:
    # R5.25
    job_id = await ended_job(store, State.DEAD_LETTER)
    clock.advance(ms=30 * DAY - 1)
    await store.prune(Keep())
    assert await state_of(store, job_id) is State.DEAD_LETTER
    clock.advance(ms=1)
    await store.prune(Keep())
    assert await store.get([job_id]) == [None]


async def test_pruning_goes_in_batches_until_all_is_gone(store: Store, clock: ManualClock) -> None:
    await submit(store, *(a_job() for _ in range(25)))
    await register(store, slots=50)
    for lease in (await claim(store, free=50))[:12]:
        await end(store, lease)
    await store.cancel([job.job_id for job in await store.find(JobQuery(states=(State.QUEUED,)))])
    await store.cancel(await submit(store, *(a_job() for _ in range(10))))
    clock.advance(ms=10_000)
    batches = [await store.prune(KEEP, limit=4) for _ in range(8)]
    assert sum(batches) == 22
    assert max(batches) <= 4
    assert len(await store.find(JobQuery())) == 13


async def test_totals_outlive_the_jobs_they_count(store: Store, clock: ManualClock) -> None:
    await ended_job(store, State.COMPLETED)
    clock.advance(ms=3 * DAY)
    await store.prune(Keep())
    assert (await store.stats()).totals == {"submitted": 1, "claimed": 1, "completed": 1}
    await ended_job(store, State.COMPLETED)
    clock.advance(ms=3 * DAY)
    await store.prune(Keep())
    assert (await store.stats()).totals == {"submitted": 2, "claimed": 2, "completed": 2}


async def test_history_goes_with_its_job(store: Store, clock: ManualClock) -> None:
    job = a_job()
    await ended_job(store, State.FAILED, job)
    clock.advance(ms=2_000)
    await store.prune(KEEP)
    await submit(store, job)
    [again] = await store.get([job.job_id])
    assert again is not None
    assert (again.state, again.history, again.epoch) == (State.QUEUED, (), 0)


async def test_workers_past_their_deadline_are_marked_dead_and_forgotten_later(
    store: Store, clock: ManualClock
) -> None:
    await register(store)
    clock.advance(ms=LEASE_MS)
    await store.prune(Keep())
    assert [worker.state for worker in (await store.stats()).workers] == [WorkerState.DEAD]
    assert await claim(store) == []
    clock.advance(ms=HOUR - 1)
    await store.prune(Keep())
    assert len((await store.stats()).workers) == 1
    clock.advance(ms=1)
    await store.prune(Keep())
    assert (await store.stats()).workers == ()


async def test_a_dead_worker_is_remembered_while_it_holds_a_lease(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    clock.advance(ms=10 * HOUR)
    await store.prune(Keep())
    assert len((await store.stats()).workers) == 1
    assert await reap(store) == [job_id]
    await store.prune(Keep())
    assert (await store.stats()).workers == ()


async def test_purging_removes_ended_jobs_of_the_states_named(store: Store) -> None:
    ended = {state: await ended_job(store, state) for state in KEPT_MS}
    assert await store.purge([State.FAILED, State.DEAD_LETTER, State.QUEUED], None) == 2
    assert await store.get([ended[State.FAILED], ended[State.DEAD_LETTER]]) == [None, None]
    assert await state_of(store, ended[State.COMPLETED]) is State.COMPLETED
    assert await store.purge([State.FAILED], None) == 0


async def test_purging_removes_the_jobs_named_if_they_have_ended_so(store: Store) -> None:
    one, other = await ended_job(store, State.FAILED), await ended_job(store, State.FAILED)
    cancelled = await ended_job(store, State.CANCELLED)
    assert await store.purge([State.FAILED], [one, cancelled, an_id()]) == 1
    assert await store.get([one]) == [None]
    assert await state_of(store, other) is State.FAILED
    assert await state_of(store, cancelled) is State.CANCELLED


async def test_purging_goes_in_batches(store: Store) -> None:
    job_ids = await submit(store, *(a_job() for _ in range(5)))
    await store.cancel(job_ids)
    assert [await store.purge([State.CANCELLED], None, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_purging_never_touches_a_live_job(store: Store) -> None:
    running, queued = await submit(store, a_job(), a_job())
    await register(store)
    await claim_one(store)
    assert await store.purge(list(State), None) == 0
    assert await store.purge(list(State), [running, queued]) == 0
    assert await claimed_ids(store) == [queued]
