"""Rows that another program damaged: they become dead letters, and stop no other job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headway.core.job import RetryRule, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, LimitRule, Policy
from headway.core.policy.retry import Crashed
from headway.dispatch.job_source import StoreJobSource
from headway.maintenance.recovery import end_worker, overdue, reap
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, beat, claim, end, register, submit_one, the_job
from tests.conftest import STORES
from tests.stores.damage import DAMAGES, Damage

CASES = [(store, name) for store, damages in DAMAGES.items() for name in damages]


async def look_at_everything(store: Store) -> None:
    """Read a store as servers and operators do. No read may raise."""
    await store.snapshot()
    await store.stats()
    await store.diagnose()
    for job in await store.find(JobQuery()):
        await store.get([job.job_id])


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}: {case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def damage(case: tuple[str, str]) -> Damage:
    store, name = case
    return DAMAGES[store][name]


@pytest.fixture
async def damaged(case: tuple[str, str], tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    store = STORES[case[0]](tmp_path, "default", clock)
    await store.open()
    if "limits" in case[1]:  # Without a rule they are not looked at.
        await write_rules(store, Policy(limits={"account": LimitRule(5, by="account")}))
    yield store
    await store.close()


@pytest.mark.parametrize("when", ["waiting", "delayed"])
async def test_a_job_that_cannot_be_read_ends_as_a_dead_letter(
    damaged: Store, damage: Damage, tmp_path: Path, clock: ManualClock, when: str
) -> None:
    store = damaged
    bad = a_job("victim", retry=RetryRule(), tenant="acme", trace_id="t", limits=("account=7",))
    bad_id = await submit_one(store, bad._replace(delay_ms=1_000 if when == "delayed" else 0))
    damage(tmp_path, (await the_job(store, bad_id)).seq)
    clock.advance(2)
    good = await submit_one(store, a_job(tenant="bolt"))
    await look_at_everything(store)
    assert (await store.get([bad_id]))[0] is not None
    await register(store, slots=10, reserved=0)

    feed = StoreJobSource(store, CurrentPolicy(), "w1", ())
    leases: list[Lease] = []
    for _ in range(10):
        leases += (await feed.exchange([], [], free=5, free_below=5)).leases
    assert [lease.job_id for lease in leases] == [good]
    job = await the_job(store, bad_id)
    assert (job.state, job.reason) == (State.DEAD_LETTER, "unreadable")
    assert job.error is not None
    assert job.error.type == "UnreadableJob"
    assert "cannot be read" in job.error.message
    await end(store, leases[0])
    assert (await the_job(store, good)).state is State.COMPLETED
    assert job.seq in {found.seq for found in await store.find(JobQuery(states=(State.DEAD_LETTER,)))}
    await look_at_everything(store)
    assert await store.purge([State.DEAD_LETTER], None) == 1
    assert await store.find(JobQuery(states=(State.DEAD_LETTER,))) == []


@pytest.mark.parametrize("how", ["overdue", "worker gone", "claim unheard"])
async def test_a_running_job_that_cannot_be_read_any_more_is_recovered_as_a_dead_letter(
    damaged: Store, damage: Damage, tmp_path: Path, clock: ManualClock, how: str
) -> None:
    store = damaged
    bad = a_job("victim", retry=RetryRule(), tenant="acme", trace_id="t", limits=("account=7",))
    bad_id, good = await submit_one(store, bad), await submit_one(store, a_job(tenant="bolt"))
    await register(store, slots=10, reserved=0)
    assert {lease.job_id for lease in await claim(store)} == {bad_id, good}
    damage(tmp_path, (await the_job(store, bad_id)).seq)
    await look_at_everything(store)
    match how:
        case "overdue":
            clock.advance(1_000)
            assert await reap(store, await overdue(store), BUILT_IN) == 2
        case "worker gone":
            await end_worker(store, "w1", BUILT_IN, lambda _: Crashed("it died"))
        case "claim unheard":
            clock.advance(60)
            await beat(store, "w1")
    assert (await the_job(store, good)).state is State.QUEUED
    job = await the_job(store, bad_id)
    damaged_after = job.error is not None and job.error.type == "UnreadableJob"
    # Where only a claim reads what was damaged, the claim finds it.
    assert (job.state is State.DEAD_LETTER and damaged_after) or job.state is State.QUEUED
    await look_at_everything(store)
    clock.advance(100)
    await register(store, "w2", slots=10, reserved=0)
    feed = StoreJobSource(store, CurrentPolicy(), "w2", ())
    leases: list[Lease] = []
    for _ in range(10):
        leases += (await feed.exchange([], [], free=5, free_below=5)).leases
    assert [lease.job_id for lease in leases] == [good]
    assert (await the_job(store, bad_id)).state is State.DEAD_LETTER
