"""Rescheduling, by an operator: a delayed job runs now, and a queued job moves to another lane."""

from __future__ import annotations

from dataclasses import replace

from headway.core.job import State
from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.retry import Raised
from headway.core.snapshot import Plan
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import Exchange, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_claim_id,
    a_job,
    an_id,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    submit,
    submit_one,
    the_job,
)
from tests.conformance.workflows import run_all, submit_node


async def test_a_delayed_job_runs_now(store: Store, clock: ManualClock) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(delay_ms=60_000))
    assert await claim(store) == []
    clock.advance(1)
    assert await store.reschedule([job_id], now=True) == [State.QUEUED]
    job = await the_job(store, job_id)
    assert (job.due_at, job.eligible_at, job.lane) == (None, clock(), "medium")
    assert await claimed_ids(store) == [job_id]
    stats = await store.stats()
    assert (stats.lanes["medium"].delayed, stats.lanes["medium"].executing) == (0, 1)


async def test_a_job_that_waits_to_be_tried_again_runs_now_and_keeps_its_attempts(store: Store) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(max_retries=3))
    await end(store, await claim_one(store), Raised(BOOM))
    before = await the_job(store, job_id)
    assert before.due_at is not None
    assert await store.reschedule([job_id], now=True) == [State.QUEUED]
    after = await the_job(store, job_id)
    assert (after.due_at, after.attempts, after.error, len(after.history)) == (None, 1, before.error, 1)
    lease = await claim_one(store)
    assert (lease.job_id, lease.attempts, lease.epoch) == (job_id, 2, 2)


async def test_a_job_that_waits_already_keeps_its_place(store: Store, clock: ManualClock) -> None:
    await register(store)
    first, second = await submit(store, a_job(), a_job())
    clock.advance(1)
    before = await the_job(store, first)
    assert await store.reschedule([first], now=True) == [State.QUEUED]
    assert await store.reschedule([first], lane="medium") == [State.QUEUED]
    assert replace(await the_job(store, first), seen_at=before.seen_at) == before
    assert await claimed_ids(store, free=2) == [first, second]


async def test_a_job_moves_behind_the_jobs_of_another_lane(store: Store, clock: ManualClock) -> None:
    await register(store, slots=9)
    moved, stays = await submit(store, a_job(lane="low"), a_job(lane="low"))
    others = await submit(store, a_job(lane="high"), a_job(lane="high"))
    clock.advance(2)
    assert await store.reschedule([moved], lane="high") == [State.QUEUED]
    job = await the_job(store, moved)
    assert (job.lane, job.eligible_at, job.submitted_at) == ("high", clock(), clock() - 2_000)
    lanes = (await store.stats()).lanes
    assert (lanes["high"].waiting, lanes["low"].waiting) == (3, 1)
    assert await claimed_ids(store, free=4) == [*others, moved, stays]


async def test_a_job_moves_to_a_lane_that_no_job_has_used(store: Store) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(lane="low", needs=()))
    assert await store.reschedule([job_id], lane="urgent") == [State.QUEUED]
    views = {view.key.lane: view.waiting for view in (await store.snapshot()).classes}
    assert views == {"low": 0, "urgent": 1}


async def test_a_delayed_job_moves_and_stays_delayed(store: Store, clock: ManualClock) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(lane="low", delay_ms=60_000))
    assert await store.reschedule([job_id], lane="high") == [State.QUEUED]
    job = await the_job(store, job_id)
    assert (job.lane, job.due_at) == ("high", clock() + 60_000)
    lanes = (await store.stats()).lanes
    assert {lane: stats.delayed for lane, stats in lanes.items() if stats.delayed} == {"high": 1}
    clock.advance(61)
    await claim(store)  # A job becomes eligible with an exchange, and is claimed by it or by the next one.
    await claim(store)
    assert (await the_job(store, job_id)).state is State.EXECUTING


async def test_a_delayed_job_moves_and_runs_now(store: Store) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(lane="low", delay_ms=60_000, tenant="acme"))
    assert await store.reschedule([job_id], lane="high", now=True) == [State.QUEUED]
    assert {lane: stats.waiting for lane, stats in (await store.waiting_of("acme")).items()} == {"high": 1}
    assert await claimed_ids(store) == [job_id]


async def test_a_tenants_job_leaves_its_share_behind(store: Store) -> None:
    await register(store, slots=9)
    ids = await submit(store, *(a_job(lane="low", tenant="acme") for _ in range(3)), a_job(lane="low", tenant="bolt"))
    await store.reschedule(ids[:2], lane="high")
    assert {lane: stats.waiting for lane, stats in (await store.waiting_of("acme")).items()} == {"high": 2, "low": 1}
    assert await claimed_ids(store, free=9) == [ids[0], ids[1], ids[3], ids[2]]


async def test_a_job_that_waits_for_its_limit_moves(store: Store) -> None:
    await write_rules(store, Policy(limits={"one": LimitRule(concurrency=1, by="tenant")}))
    await register(store, slots=9)
    ids = await submit(store, *(a_job(tenant="acme") for _ in range(3)))
    assert await claimed_ids(store, free=9) == ids[:1]
    assert (await the_job(store, ids[1])).blocked_by == "one=acme"
    assert await store.reschedule([ids[1]], lane="high") == [State.QUEUED]
    moved = await the_job(store, ids[1])
    assert (moved.lane, moved.blocked_by) == ("high", None)
    assert await claimed_ids(store, free=9) == []
    assert (await the_job(store, ids[1])).blocked_by == "one=acme"


async def test_a_job_that_runs_or_has_ended_stays_as_it_is(store: Store) -> None:
    await register(store)
    running = await submit_one(store)
    lease = await claim_one(store)
    before = await the_job(store, running)
    assert await store.reschedule([running, an_id()], lane="high", now=True) == [State.EXECUTING, None]
    assert await the_job(store, running) == before
    await end(store, lease)
    assert await store.reschedule([running], lane="high", now=True) == [State.COMPLETED]
    assert (await the_job(store, running)).lane == "medium"


async def test_a_waiting_worker_is_woken_for_a_job_that_runs_now(store: Store) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(delay_ms=600_000))
    subscription = store.subscribe("w1")
    await claim(store)
    await store.exchange(Exchange("w1", a_claim_id(), plan=Plan(), wait=True))
    await store.reschedule([job_id], now=True)
    assert await subscription.wait(10) is not None
    subscription.close()


async def test_a_held_job_stays_held(store: Store) -> None:
    await register(store)
    first = await submit_one(store)
    held = await submit_node(store, first)
    before = await the_job(store, held)
    assert await store.reschedule([held], lane="high", now=True) == [State.QUEUED]
    after = await the_job(store, held)
    assert (after.held, after.lane) == (True, before.lane)
    assert await run_all(store) == [first, held]
