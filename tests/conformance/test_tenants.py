"""Tenants: they share the jobs of a class fairly. A class without tenants is first come, first served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from headway.core.job import ClassKey, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, LimitRule, Policy, Tenants
from headway.core.policy.retry import Raised, Released, Returned, Unknown, judge
from headway.core.snapshot import ClassView
from headway.policy_store.rule_documents import change_costs, write_rules
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    report,
    submit,
    submit_one,
)

PLENTY = 1_000


async def serve(store: Store, count: int) -> list[Lease]:
    """Claim and finish jobs one after another. Return them in the order in which they came."""
    served: list[Lease] = []
    while len(served) < count:
        lease = await claim_one(store)
        await end(store, lease)
        served.append(lease)
    return served


def tenants(leases: list[Lease]) -> str:
    """Return the first letters of the tenants, in order, with a dash for a job without a tenant."""
    return "".join((lease.tenant or "-")[0] for lease in leases)


def jobs_of(tenant: str | None, count: int, *, task: str = "reports.export", lane: str = "medium") -> list[NewJob]:
    return [a_job(tenant=tenant, task=task, lane=lane) for _ in range(count)]


async def weigh(store: Store, default: float = 1, **weights: float) -> None:
    await write_rules(store, Policy(tenants=Tenants(default, weights)))


async def expect(store: Store, costs_us: Mapping[str, int]) -> None:
    await change_costs(store, lambda _: dict(costs_us))


async def the_class(store: Store, key: ClassKey = ClassKey("medium")) -> ClassView:  # noqa: B008  (it is frozen)
    return next(view for view in (await store.snapshot()).classes if view.key == key)


# ---------------------------------------------------------------------- shares


async def test_one_tenants_backlog_pushes_nobody_back_by_more_than_a_job(store: Store) -> None:
    # R4.1, R4.39, R5.66
    await submit(store, *jobs_of("acme", PLENTY))
    [one] = await submit(store, a_job(tenant="zeta"))
    await register(store)
    assert one in [lease.job_id for lease in await claim(store, free=2)]


async def test_tenants_take_turns_and_each_is_served_in_order(store: Store) -> None:
    acme = await submit(store, *jobs_of("acme", 6))
    zeta = await submit(store, *jobs_of("zeta", 3))
    await register(store)
    served = await serve(store, 9)
    assert tenants(served) == "azazazaaa"
    assert [lease.job_id for lease in served if lease.tenant == "acme"] == acme
    assert [lease.job_id for lease in served if lease.tenant == "zeta"] == zeta


async def test_turns_are_taken_within_one_claim_too(store: Store) -> None:
    await submit(store, *jobs_of("acme", 6), *jobs_of("zeta", 6))
    await register(store, slots=8)
    assert tenants(await claim(store, free=8)) == "azazazaz"


async def test_a_weight_gives_so_many_times_the_turns(store: Store) -> None:
    await weigh(store, acme=3)
    await submit(store, *jobs_of("acme", 20), *jobs_of("zeta", 20))
    await register(store)
    assert Counter(tenants(await serve(store, 16))) == {"a": 12, "z": 4}


async def test_tenants_without_a_weight_of_their_own_have_the_default(store: Store) -> None:
    await weigh(store, 2, zeta=1)
    await submit(store, *jobs_of("acme", 20), *jobs_of("zeta", 20), *jobs_of(None, 20))
    await register(store)
    assert Counter(tenants(await serve(store, 20))) == {"a": 8, "z": 4, "-": 8}


async def test_a_turn_is_counted_by_what_its_job_is_expected_to_take(store: Store) -> None:
    # R4.40
    await expect(store, {"export": 5_000_000, "ping": 1_000_000})
    await submit(store, *jobs_of("acme", 20, task="export"), *jobs_of("zeta", 20, task="ping"))
    await register(store)
    assert Counter(tenants(await serve(store, 12))) == {"a": 2, "z": 10}


async def test_a_tenant_whose_jobs_are_dearer_than_others_pays_for_its_own(store: Store) -> None:
    await expect(store, {"export": 1_000_000, "export=acme": 3_000_000})
    await submit(store, *jobs_of("acme", 20, task="export"), *jobs_of("zeta", 20, task="export"))
    await register(store)
    assert Counter(tenants(await serve(store, 12))) == {"a": 3, "z": 9}


async def test_the_jobs_of_a_task_that_nothing_is_known_of_count_for_a_second(store: Store) -> None:
    await expect(store, {"export": 2_000_000})
    await submit(store, *jobs_of("acme", 20, task="export"), *jobs_of("zeta", 20, task="new"))
    await register(store)
    assert Counter(tenants(await serve(store, 12))) == {"a": 4, "z": 8}


async def test_jobs_without_a_tenant_are_one_tenant(store: Store) -> None:
    await submit(store, *jobs_of("acme", 4), *jobs_of(None, 4), *jobs_of("zeta", 4))
    await register(store)
    assert tenants(await serve(store, 12)) == "a-z" * 4


async def test_who_comes_late_has_stored_nothing_up(store: Store) -> None:
    await submit(store, *jobs_of("acme", 30))
    await register(store)
    await serve(store, 10)
    await submit(store, *jobs_of("zeta", 10))
    served = tenants(await serve(store, 10))
    assert served.startswith("z")
    assert Counter(served) == {"a": 5, "z": 5}


async def test_what_runs_counts_for_its_tenant(store: Store) -> None:
    # Otherwise a tenant that submits one job at a time, whenever one has started, would never wait.
    await submit(store, *jobs_of("acme", 2), *jobs_of("zeta", 3))
    await register(store, slots=10)
    served = []
    for _ in range(4):
        lease = await claim_one(store)
        served.append(lease)
        if lease.tenant == "acme":
            await submit(store, *jobs_of("acme", 1))
    assert tenants(served) == "azaz"


async def test_a_tenant_whose_job_runs_long_has_stored_nothing_up_either(store: Store) -> None:
    await submit(store, *jobs_of("acme", 1))
    await register(store)
    await claim_one(store)
    await submit(store, *jobs_of("zeta", 10))
    await serve(store, 10)
    await submit(store, *jobs_of("mira", 2), *jobs_of("acme", 4))
    assert tenants(await serve(store, 6)) == "mamaaa"


async def test_a_tenant_that_cancels_everything_keeps_no_debt(store: Store) -> None:
    acme = await submit(store, *jobs_of("acme", 100))
    zeta = await submit(store, *jobs_of("zeta", 5))
    await store.cancel(acme)
    again = await submit_one(store, a_job(tenant="acme"))
    await register(store)
    assert await claimed_ids(store, free=2) == [zeta[0], again]


async def test_a_tenant_that_cancels_a_part_keeps_the_place_of_the_rest(store: Store) -> None:
    acme = await submit(store, *jobs_of("acme", 10))
    await submit(store, *jobs_of("zeta", 5))
    await store.cancel(acme[2:])
    await submit(store, *jobs_of("acme", 3))
    await register(store)
    assert tenants(await serve(store, 10)) == "azaz" + "za" * 3  # Of the same place, the earlier submitted.


async def test_each_class_is_shared_by_itself(store: Store) -> None:
    await submit(store, *jobs_of("acme", 5, lane="low"))
    await submit(store, *jobs_of("zeta", 5), *jobs_of("acme", 2))
    await register(store)
    served = await serve(store, 7)
    assert tenants(served) == "zazazzz"
    assert {lease.lane for lease in served} == {"medium"}


async def test_age_does_not_lift_one_tenants_backlog_over_the_others(store: Store, clock: ManualClock) -> None:
    # R5.66
    await submit(store, *jobs_of("acme", 20, lane="low"))
    clock.advance(seconds=3_600)
    await submit(store, *jobs_of("zeta", 5, lane="low"))
    await register(store)
    assert Counter(tenants(await serve(store, 10))) == {"a": 5, "z": 5}


async def test_blocked_jobs_keep_their_place_among_the_tenants(store: Store) -> None:
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
    bound = [a_job(tenant="acme", limits=("account=7",)) for _ in range(3)]
    acme = await submit(store, *bound)
    await submit(store, *jobs_of("zeta", 4))
    await register(store, slots=10)
    first, second = await claim(store, free=2)
    assert (first.job_id, second.tenant) == (acme[0], "zeta")
    assert tenants(await claim(store, free=1)) == "z"  # The next of acme waits for its account.
    await end(store, first)
    assert await claimed_ids(store, free=1) == [acme[1]]


# ---------------------------------------------------------------------- first come, first served


async def test_a_class_without_tenants_is_strictly_first_come_first_served(store: Store) -> None:
    # R5.11: whatever the jobs cost, and whatever weights are in force.
    await weigh(store, 5, acme=3)
    await expect(store, {"export": 50_000_000, "ping": 1_000})
    mixed = [a_job(task=task) for task in ("export", "ping", "export", "ping", "other", "export", "ping")]
    jobs = await submit(store, *mixed)
    await register(store)
    assert [lease.job_id for lease in await serve(store, 3)] == jobs[:3]
    more = await submit(store, *(a_job(task=task) for task in ("ping", "export")))
    assert [lease.job_id for lease in await serve(store, 6)] == [*jobs[3:], *more]
    assert not (await the_class(store)).fair


async def test_a_class_stays_first_come_first_served_whatever_others_do(store: Store) -> None:
    # R5.11
    jobs = await submit(store, *jobs_of(None, 3))
    await submit(store, *jobs_of("acme", 3, lane="low"))
    jobs += await submit(store, *jobs_of(None, 3))
    await register(store)
    assert [lease.job_id for lease in await serve(store, 6)] == jobs
    assert not (await the_class(store)).fair
    assert (await the_class(store, ClassKey("low"))).fair


@pytest.mark.parametrize("together", [pytest.param(True, id="in one batch"), pytest.param(False, id="one by one")])
async def test_what_waited_before_the_first_tenant_came_stays_in_order(store: Store, together: bool) -> None:
    # R5.11
    jobs = [*jobs_of(None, 20), *jobs_of("acme", 1), *jobs_of(None, 3)]
    if together:
        job_ids = await submit(store, *jobs)
    else:
        job_ids = [await submit_one(store, job) for job in jobs]
    await register(store)
    served = await serve(store, 24)
    assert [lease.job_id for lease in served if lease.tenant is None] == [*job_ids[:20], *job_ids[21:]]
    assert tenants(served[:2]) == "-a"
    assert (await the_class(store)).fair


async def test_a_class_that_becomes_shared_while_all_of_it_runs_starts_where_it_is(store: Store) -> None:
    await register(store, slots=10)
    await submit(store, *jobs_of(None, 3))
    await claim(store)
    await submit(store, *jobs_of(None, 2))
    await submit(store, *jobs_of("acme", 2), *jobs_of(None, 1))
    assert tenants(await claim(store, free=7)) == "-a-a-"


async def test_what_runs_when_a_class_becomes_shared_counts_for_those_without_a_tenant(store: Store) -> None:
    await register(store, slots=10)
    await submit(store, *jobs_of(None, 3))
    await claim(store)
    await submit(store, *jobs_of("acme", 1))
    await submit(store, *jobs_of(None, 1))
    await submit(store, *jobs_of("zeta", 1))
    assert tenants(await claim(store)) == "az-"


async def test_a_class_that_was_emptied_goes_on_being_shared(store: Store) -> None:
    await submit(store, *jobs_of("acme", 3))
    await register(store)
    await serve(store, 3)
    await submit(store, *jobs_of(None, 4), *jobs_of("zeta", 4))
    assert tenants(await serve(store, 8)) == "-z-z-z-z"


# ---------------------------------------------------------------------- ways back


async def test_what_is_handed_back_unharmed_comes_first(store: Store) -> None:
    await submit(store, *jobs_of("acme", 5), *jobs_of("zeta", 5))
    await register(store)
    await serve(store, 3)
    lease = await claim_one(store)
    await submit(store, *jobs_of("mira", 2))
    await report(store, judge(Released(), lease, BUILT_IN))
    assert await claimed_ids(store, free=1) == [lease.job_id]


async def test_several_that_are_handed_back_keep_their_order(store: Store) -> None:
    jobs = await submit(store, *jobs_of("acme", 6))
    await register(store)
    leases = await claim(store, free=4)
    await report(store, *(judge(Released(), lease, BUILT_IN) for lease in reversed(leases)))
    assert await claimed_ids(store, free=5) == jobs[:5]


async def test_what_a_worker_does_not_know_comes_first_in_the_class_it_goes_to(store: Store) -> None:
    await submit(store, *jobs_of("acme", 2))
    await register(store)
    first = await claim_one(store)
    await report(store, judge(Unknown(), first, BUILT_IN))
    second = await claim_one(store)
    await report(store, judge(Unknown(), second, BUILT_IN))
    assert (second.tenant, first.job_id != second.job_id) == ("acme", True)
    offers = ("task:reports.export",)
    await register(store, "w2", offers=offers)
    assert await claimed_ids(store, "w2", offers=offers) == [first.job_id, second.job_id]


async def test_a_job_that_failed_waits_at_the_end_of_its_tenants_line(store: Store, clock: ManualClock) -> None:
    # R5.68
    acme = await submit(store, *jobs_of("acme", 3))
    zeta = await submit(store, *jobs_of("zeta", 3))
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM))
    clock.advance(seconds=60)
    await beat(store)
    assert [lease.job_id for lease in await serve(store, 6)] == [zeta[0], acme[1], zeta[1], acme[2], zeta[2], acme[0]]


async def test_a_job_that_is_retried_by_hand_waits_at_the_end_of_its_tenants_line(store: Store) -> None:
    acme = await submit(store, *jobs_of("acme", 3))
    zeta = await submit(store, *jobs_of("zeta", 3))
    await store.cancel([acme[0]])
    assert await store.retry([acme[0]]) == [State.QUEUED]
    await register(store)
    assert [lease.job_id for lease in await serve(store, 6)] == [zeta[0], acme[1], zeta[1], acme[2], zeta[2], acme[0]]


async def test_a_delayed_job_is_placed_when_it_is_due(store: Store, clock: ManualClock) -> None:
    delayed = await submit_one(store, a_job(tenant="mira", delay_ms=1_000))
    await submit(store, *jobs_of("acme", 20))
    await register(store)
    await serve(store, 10)
    clock.advance(seconds=1)
    # It is keyed at the clock, no earlier: it does not push back what came before it by more than its turn.
    assert delayed in [lease.job_id for lease in await serve(store, 2)]


# ---------------------------------------------------------------------- what is told of it


async def test_the_oldest_of_a_shared_class_need_not_be_its_first(store: Store, clock: ManualClock) -> None:
    # R5.5: a lane rises by the age of the job that has waited longest.
    began_at = clock()
    acme = await submit(store, *jobs_of("acme", 3))
    clock.advance(seconds=10)
    [zeta] = await submit(store, a_job(tenant="zeta"))
    await register(store)
    assert await claimed_ids(store, free=1) == acme[:1]
    view = await the_class(store)
    assert (view.oldest_at, view.waiting, view.fair) == (began_at, 3, True)
    assert (await store.stats()).lanes["medium"].oldest_at == began_at
    await store.cancel(acme[1:])
    assert (await the_class(store)).oldest_at == began_at + 10_000
    assert await claimed_ids(store, free=1) == [zeta]
    assert (await the_class(store)).oldest_at is None


async def test_the_age_of_what_was_handed_back_goes_on(store: Store, clock: ManualClock) -> None:
    began_at = clock()
    await submit(store, *jobs_of("acme", 1))
    await register(store)
    clock.advance(seconds=5)
    lease = await claim_one(store)
    await report(store, judge(Released(), lease, BUILT_IN))
    assert (await the_class(store)).oldest_at == began_at


async def test_a_tenants_finished_jobs_leave_no_trace_in_the_order(store: Store) -> None:
    await submit(store, *jobs_of("acme", 10))
    await register(store, slots=20)
    leases = await claim(store, free=10)
    await report(store, *(judge(Returned(b"1"), lease, BUILT_IN) for lease in leases))
    late = await submit(store, a_job(tenant="acme"), a_job(tenant="zeta"))
    assert await claimed_ids(store, free=2) == late


# ---------------------------------------------------------------------- how many wait


async def test_a_tenants_waiting_jobs_are_counted_by_lane(store: Store, clock: ManualClock) -> None:
    # S-20, S-31: those of others, delayed ones and those that run are not among them.
    await register(store, slots=9)
    assert await store.waiting_of("acme") == {}
    await submit(store, a_job(lane="low"), a_job(lane="low", tenant="acm"), a_job(lane="low", tenant="acme2"))
    await submit(store, a_job(lane="low", tenant="acme"), a_job(lane="low", tenant="acme", needs=("gpu",)))
    clock.advance(5)
    await submit(store, a_job(lane="high", tenant="acme"), a_job(lane="low", tenant="acme", delay_ms=60_000))
    await submit(store, a_job(lane="low", tenant="acme"), a_job(lane="low", tenant="bolt"))
    waiting = await store.waiting_of("acme")
    assert {lane: stats.waiting for lane, stats in waiting.items()} == {"low": 3, "high": 1}
    assert {lane: (stats.delayed, stats.executing) for lane, stats in waiting.items()} == {
        "low": (0, 0),
        "high": (0, 0),
    }
    now_at = (await store.snapshot()).now_at
    assert (waiting["low"].oldest_at, waiting["high"].oldest_at) == (now_at - 5_000, now_at)
    assert (await store.waiting_of("bolt"))["low"].waiting == 1
    assert await store.waiting_of("nobody") == {}


async def test_a_tenants_job_that_runs_or_has_ended_waits_no_more(store: Store, clock: ManualClock) -> None:
    await register(store, slots=9)
    await submit(store, *(a_job(tenant="acme") for _ in range(3)), a_job(tenant="bolt"))
    clock.advance(1)
    leases = await claim(store, free=3)
    mine = [lease for lease in leases if lease.tenant == "acme"]
    left = 3 - len(mine)
    assert {lane: stats.waiting for lane, stats in (await store.waiting_of("acme")).items()} == {"medium": left}
    for lease in mine:
        await end(store, lease)
    assert (await store.waiting_of("acme"))["medium"].waiting == left
    ended = (await store.waiting_of("acme"))["medium"]
    assert ended.oldest_at == (await store.snapshot()).now_at - 1_000
    await claim(store, free=9)
    assert await store.waiting_of("acme") == {}


async def test_a_job_that_waits_for_its_limit_is_counted(store: Store) -> None:
    await write_rules(store, Policy(limits={"one": LimitRule(concurrency=1, by="tenant")}))
    await register(store, slots=9)
    await submit(store, *(a_job(tenant="acme") for _ in range(4)))
    assert len(await claim(store, free=9)) == 1
    assert {lane: stats.waiting for lane, stats in (await store.waiting_of("acme")).items()} == {"medium": 3}
