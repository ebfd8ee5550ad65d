"""Pauses: which jobs must not start, and which continue."""

from __future__ import annotations

import pytest

from headway.core.job import ClassKey, NewJob, State
from headway.core.policy.document import Keep, LimitRule, Policy
from headway.core.policy.enforced import PAUSE, PauseSet, pausing, resuming
from headway.core.policy.retry import Raised
from headway.policy_store.rule_documents import change_paused, read_paused, write_rules
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    ask,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    submit,
    submit_one,
    the_job,
)
from tests.conformance.conftest import Listen

SOON = 5  # Seconds; a wake-up takes milliseconds.
SILENCE = 0.03  # Seconds in which nothing may come.


async def pause(
    store: Store, *, lane: str | None = None, task: str | None = None, tenant: str | None = None
) -> PauseSet:  # fmt: skip
    return await change_paused(store, pausing(lane, task, tenant))


async def resume(
    store: Store, *, lane: str | None = None, task: str | None = None, tenant: str | None = None
) -> PauseSet:  # fmt: skip
    return await change_paused(store, resuming(lane, task, tenant))


CASES = [
    pytest.param({"lane": "low"}, {"lane": "low"}, id="a lane"),
    pytest.param({"task": "mail.send"}, {"task": "mail.send"}, id="a task"),
    pytest.param({"tenant": "acme"}, {"tenant": "acme"}, id="a tenant"),
    pytest.param({}, {}, id="everything"),
]


@pytest.mark.parametrize("what, held", CASES)
async def test_what_is_paused_waits_and_goes_on_where_it_was(
    store: Store, what: dict[str, str], held: dict[str, str]
) -> None:
    await register(store, slots=20)
    jobs = await submit(store, *(a_job(**held) for _ in range(3)))  # type: ignore[arg-type]
    await pause(store, **what)
    jobs += await submit(store, a_job(**held))  # type: ignore[arg-type]
    assert await claimed_ids(store) == []
    assert {(await the_job(store, job_id)).state for job_id in jobs} == {State.QUEUED}
    await resume(store, **what)
    assert await claimed_ids(store) == jobs


@pytest.mark.parametrize(
    "what, held",
    [
        pytest.param({"lane": "low"}, {"lane": "medium"}, id="another lane"),
        pytest.param({"task": "mail.send"}, {"task": "mail.sender"}, id="another task"),
        pytest.param({"tenant": "acme"}, {"tenant": "zeta"}, id="another tenant"),
        pytest.param({"tenant": "acme"}, {"tenant": None}, id="no tenant"),
    ],
)
async def test_what_is_not_paused_is_not_held_up(
    store: Store, what: dict[str, str], held: dict[str, str | None]
) -> None:
    await register(store, slots=20)
    await pause(store, **what)
    await submit(store, *(a_job(**what) for _ in range(3)))  # type: ignore[arg-type]
    others = await submit(store, *(a_job(**held) for _ in range(2)))  # type: ignore[arg-type]
    assert await claimed_ids(store) == others


@pytest.mark.parametrize("what, held", CASES)
async def test_what_runs_goes_on(store: Store, clock: ManualClock, what: dict[str, str], held: dict[str, str]) -> None:
    await register(store)
    first, second = await submit(store, a_job(**held), a_job(**held))  # type: ignore[arg-type]
    one, other = await claim(store)
    await pause(store, **what)
    assert len(await store.leases(worker_id="w1")) == 2
    await end(store, one)
    await end(store, other, Raised(BOOM))
    assert (await the_job(store, first)).state is State.COMPLETED
    clock.advance(seconds=60)
    assert await claimed_ids(store) == []  # Its next attempt is a start like any other.
    await resume(store, **what)
    assert await claimed_ids(store) == [second]


@pytest.mark.parametrize("what, held", CASES)
async def test_workers_that_wait_are_woken_when_something_is_resumed(
    store: Store, listen: Listen, what: dict[str, str], held: dict[str, str]
) -> None:
    await register(store)
    await pause(store, **what)
    await submit(store, a_job(**held))  # type: ignore[arg-type]
    assert not (await ask(store, wait=True)).leases
    subscription = listen("w1")
    assert await subscription.wait(SILENCE) is None
    await resume(store, **what)
    assert await subscription.wait(SOON) is not None
    assert len(await claim(store)) == 1


async def test_a_paused_lane_is_told_and_plans_pass_it_by(store: Store) -> None:
    await register(store)
    await submit(store, a_job(lane="high"), a_job(lane="low"))
    await pause(store, lane="high")
    views = {view.key.lane: view for view in (await store.snapshot()).classes}
    assert (views["high"].blocked, views["low"].blocked) == ("paused", None)
    assert views["high"].waiting == 1
    assert [lease.lane for lease in await claim(store)] == ["low"]


async def test_what_is_paused_by_task_or_tenant_is_put_aside_and_tells_for_what(
    store: Store, clock: ManualClock
) -> None:
    await register(store)
    await pause(store, task="mail.send")
    await pause(store, tenant="acme")
    mail, acme = await submit(store, a_job(task="mail.send"), a_job(tenant="acme"))
    assert await claimed_ids(store) == []
    assert (await the_job(store, mail)).blocked_by == f"{PAUSE}task:mail.send"
    assert (await the_job(store, acme)).blocked_by == f"{PAUSE}tenant:acme"
    clock.advance(seconds=7)
    await resume(store)
    assert set(await claimed_ids(store)) == {mail, acme}
    for job_id in (mail, acme):
        job = await the_job(store, job_id)
        assert (job.blocked_by, job.blocked_for, job.blocked_ms) == (None, "paused", 7_000)


async def test_pauses_add_up_and_are_taken_back_one_by_one(store: Store) -> None:
    await register(store)
    await pause(store, lane="low")
    await pause(store, task="mail.send")
    assert await pause(store, task="ping") == PauseSet(lanes=("low",), tasks=("mail.send", "ping"))
    assert await pause(store, task="ping") == PauseSet(lanes=("low",), tasks=("mail.send", "ping"))
    mail, low, both = await submit(
        store, a_job(task="mail.send"), a_job(lane="low"), a_job(task="mail.send", lane="low")
    )
    assert await claimed_ids(store) == []
    assert await resume(store, lane="low") == PauseSet(tasks=("mail.send", "ping"))
    assert await claimed_ids(store) == [low]
    await resume(store, task="mail.send")
    assert await claimed_ids(store) == [mail, both]
    assert await read_paused(store) == PauseSet(tasks=("ping",))


async def test_to_resume_something_leaves_what_was_paused_otherwise(store: Store) -> None:
    await register(store)
    await pause(store)
    await pause(store, lane="low")
    [low] = await submit(store, a_job(lane="low"))
    assert await resume(store, lane="low") == PauseSet(everything=True)
    assert await claimed_ids(store) == []
    assert await resume(store) == PauseSet()
    assert await claimed_ids(store) == [low]


async def test_to_resume_everything_ends_every_pause(store: Store) -> None:
    await register(store)
    for what in ({"lane": "low"}, {"task": "mail.send"}, {"tenant": "acme"}, {}):
        await pause(store, **what)
    jobs = await submit(store, a_job(lane="low"), a_job(task="mail.send"), a_job(tenant="acme"), a_job())
    assert await claimed_ids(store) == []
    assert await resume(store) == PauseSet()
    assert set(await claimed_ids(store)) == set(jobs)


async def test_several_words_in_one_call_pause_each(store: Store) -> None:
    await register(store)
    await pause(store, lane="low", tenant="acme")
    low, acme, other = await submit(store, a_job(lane="low"), a_job(tenant="acme"), a_job())
    assert await claimed_ids(store) == [other]
    await resume(store, lane="low", tenant="acme")
    assert set(await claimed_ids(store)) == {low, acme}


def transient(task: str = "ping", lane: str = "medium") -> NewJob:
    return a_job(task=task, lane=lane, persist=False)


async def test_transient_jobs_are_paused_by_lane_and_task_and_as_everything(store: Store) -> None:
    await register(store, slots=20)
    await pause(store, lane="low")
    await pause(store, task="mail.send")
    await submit(store, transient("mail.send"), transient(lane="low"), transient("ping"), transient("mail.send"))
    assert [lease.task for lease in await claim(store)] == ["ping"]
    await resume(store, task="mail.send")
    assert [lease.task for lease in await claim(store)] == ["mail.send"] * 2
    await pause(store)
    await resume(store, lane="low")
    assert await claimed_ids(store) == []
    await resume(store)
    assert [lease.lane for lease in await claim(store)] == ["low"]


async def test_more_transient_jobs_than_are_asked_for_hide_none_behind_a_pause(store: Store) -> None:
    await register(store, slots=20)
    await pause(store, task="mail.send")
    await submit(store, *(transient("mail.send") for _ in range(150)), transient("ping"))
    assert [lease.task for lease in await claim(store, free=1)] == ["ping"]


async def test_more_paused_jobs_than_one_claim_passes_over_are_no_wall(store: Store) -> None:
    # R5.54 for pauses.
    await register(store)
    await pause(store, task="mail.send")
    await submit(store, *(a_job(task="mail.send") for _ in range(150)))
    behind = await submit_one(store)
    first = await ask(store)
    assert (list(first.leases), first.more) == ([], True)
    assert await claimed_ids(store) == [behind]


async def test_a_paused_job_may_be_cancelled_or_expire(store: Store, clock: ManualClock) -> None:
    await register(store)
    await pause(store, task="reports.export")
    cancelled, expired, kept = await submit(store, a_job(), a_job(expires_ms=1_000), a_job())
    assert await claimed_ids(store) == []
    assert await store.cancel([cancelled]) == [State.CANCELLED]
    clock.advance(seconds=1)
    assert await store.prune(Keep()) == 1
    assert (await the_job(store, expired)).reason == "expired"
    await resume(store)
    assert await claimed_ids(store) == [kept]


async def test_a_pause_and_a_limit_hold_side_by_side(store: Store) -> None:
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
    await register(store)
    await pause(store, task="reports.export")
    first, second = await submit(store, *(a_job(limits=("account=7",)) for _ in range(2)))
    assert await claimed_ids(store) == []
    await resume(store)
    lease = await claim_one(store)
    assert lease.job_id == first
    assert await claimed_ids(store) == []
    assert (await the_job(store, second)).blocked_by == "account=7"
    await pause(store, task="reports.export")
    await end(store, lease)
    assert await claimed_ids(store) == []
    await resume(store, task="reports.export")
    assert await claimed_ids(store) == [second]


async def test_a_pause_outlives_a_new_policy(store: Store) -> None:
    await register(store)
    await pause(store, lane="low")
    await write_rules(store, Policy(limits={"all": LimitRule(concurrency=9)}))
    await submit(store, a_job(lane="low"))
    assert await claimed_ids(store) == []
    assert (await store.diagnose()).rules.paused == PauseSet(lanes=("low",))
    [view] = (await store.snapshot()).classes
    assert (view.key, view.blocked) == (ClassKey("low"), "paused")
