"""The breakdown of a queue: jobs by tenant, and jobs that wait for limits and pauses."""

from __future__ import annotations

from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.enforced import pausing
from headway.policy_store.rule_documents import change_paused, write_rules
from headway.stores.base import BlockedStats, Store, TenantStats
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, end, register, submit


async def test_an_empty_store_has_neither_tenants_nor_blocked_queues(store: Store, clock: ManualClock) -> None:
    await submit(store, a_job(), a_job(lane="low"))
    found = await store.breakdown()
    assert (found.now_at, found.tenants, found.blocked) == (clock(), {}, {})


async def test_waiting_and_running_jobs_are_counted_by_tenant(store: Store, clock: ManualClock) -> None:
    await register(store, slots=9)
    began_at = clock()
    await submit(store, *(a_job(tenant="acme") for _ in range(3)), a_job(tenant="bolt"), a_job())
    clock.advance(4)
    await submit(store, a_job(tenant="acme", lane="low"), a_job(tenant="late", delay_ms=60_000))
    assert (await store.breakdown()).tenants == {
        "acme": TenantStats(4, 0, began_at),
        "bolt": TenantStats(1, 0, began_at),
    }
    leases = await claim(store, free=4)
    running = {name: sum(lease.tenant == name for lease in leases) for name in ("acme", "bolt")}
    tenants = (await store.breakdown()).tenants
    assert {name: one.running for name, one in tenants.items()} == {name: n for name, n in running.items() if n}
    assert tenants["acme"].waiting == 4 - running["acme"]
    for lease in leases:
        await end(store, lease)
    assert sum(one.running for one in (await store.breakdown()).tenants.values()) == 0


async def test_names_that_begin_alike_are_counted_apart(store: Store) -> None:
    names = ["a", "aa", "a:", "a=b", "ab", "b", "Ä", "a b", "0"]
    await submit(store, *(a_job(tenant=name) for name in names), a_job(tenant="a"))
    assert {name: one.waiting for name, one in (await store.breakdown()).tenants.items()} == {
        name: 2 if name == "a" else 1 for name in names
    }


async def test_a_breakdown_names_a_bounded_number_of_tenants(store: Store) -> None:
    await submit(store, *(a_job(tenant=f"t{number:03}") for number in range(30)))
    assert len((await store.breakdown(limit=7)).tenants) == 7
    assert len((await store.breakdown(limit=30)).tenants) == 30


async def test_a_long_queue_counts_up_to_a_bound(store: Store) -> None:
    await submit(store, *(a_job(tenant="acme") for _ in range(1_005)), a_job(tenant="bolt"))
    tenants = (await store.breakdown()).tenants
    assert (tenants["acme"].waiting, tenants["bolt"].waiting) == (1_000, 1)


async def test_jobs_that_wait_for_a_limit_are_counted_by_counter(store: Store) -> None:
    await write_rules(store, Policy(limits={"one": LimitRule(concurrency=1, by="tenant")}))
    await register(store, slots=9)
    await submit(store, *(a_job(tenant="acme") for _ in range(4)), *(a_job(tenant="bolt") for _ in range(2)))
    await claim(store, free=9)
    found = await store.breakdown()
    assert found.blocked == {"one=acme": BlockedStats({"medium": 3}), "one=bolt": BlockedStats({"medium": 1})}
    assert found.tenants["acme"][:2] == (3, 1)
    assert list((await store.breakdown(limit=1)).blocked) == ["one=acme"]


async def test_a_rate_says_when_it_allows_the_next_start(store: Store, clock: ManualClock) -> None:
    await write_rules(store, Policy(limits={"slow": LimitRule(count=1, period_ms=60_000)}))
    await register(store, slots=9)
    await submit(store, a_job(), a_job(), a_job())
    assert len(await claim(store, free=9)) == 1
    assert (await store.breakdown()).blocked == {"slow": BlockedStats({"medium": 2}, clock() + 60_000)}
    clock.advance(61)
    assert (await store.breakdown()).blocked["slow"].open_at is None


async def test_paused_jobs_are_counted(store: Store) -> None:
    await register(store, slots=9)
    await submit(store, a_job(task="export"), a_job(task="export"), a_job())
    await change_paused(store, pausing(None, "export", None))
    await claim(store, free=9)
    blocked = (await store.breakdown()).blocked
    assert {key: one.waiting for key, one in blocked.items()} == {"=paused:task:export": 2}


async def test_jobs_that_wait_for_a_limit_are_counted_by_lane(store: Store) -> None:
    await write_rules(store, Policy(limits={"one": LimitRule(concurrency=1)}))
    await register(store, slots=9, offers=("gpu",))
    await submit(store, a_job(lane="high"))
    await claim(store, free=9)
    await submit(store, a_job(lane="high"), *(a_job(lane="low") for _ in range(2)), a_job(lane="low", needs=("gpu",)))
    await claim(store, free=9, offers=("gpu",))
    assert (await store.breakdown()).blocked == {"one": BlockedStats({"high": 1, "low": 3})}
