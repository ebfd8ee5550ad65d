"""A reserve of the whole pool: slots that only some lanes may fill, on any worker."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.core.lease import Lease
from headway.core.policy.document import Policy, Reserve
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import LEASE_MS, a_job, ask, beat, end, register, submit

CAP = Policy(reserve=Reserve(slots=2, scope="pool"))
LEAVE_FREE = Policy(reserve=Reserve(slots=2, scope="pool", rule="leave_free"))
RULES = [pytest.param(CAP, id="cap"), pytest.param(LEAVE_FREE, id="leave free")]


async def fill(store: Store, *worker_ids: str, policy: Policy = CAP, free: int = 10) -> list[Lease]:
    """Claim for each worker in turn. Return all leases."""
    leases: list[Lease] = []
    for worker_id in worker_ids:
        leases += (await ask(store, worker_id, free=free, policy=policy)).leases
    return leases


def lanes(leases: list[Lease]) -> dict[str, int]:
    return dict(Counter(lease.lane for lease in leases))


async def queue(store: Store, *, high: int = 0, low: int = 0) -> None:
    await submit(store, *(a_job(lane="low") for _ in range(low)), *(a_job(lane="high") for _ in range(high)))


@pytest.mark.parametrize("policy", RULES)
async def test_other_lanes_fill_all_slots_of_the_pool_but_the_reserve(store: Store, policy: Policy) -> None:
    # R1.25, R1.24: 3 workers of 3 slots with 2 reserved: 7 low jobs, not 3 times (3 - 2).
    await write_rules(store, policy)
    for worker_id in ("w1", "w2", "w3"):
        await register(store, worker_id, slots=3)
    await queue(store, low=20)
    assert lanes(await fill(store, "w1", "w2", "w3", policy=policy)) == {"low": 7}
    await queue(store, high=5)
    assert lanes(await fill(store, "w1", "w2", "w3", policy=policy)) == {"high": 2}


@pytest.mark.parametrize("policy", RULES)
async def test_the_lanes_of_the_reserve_may_use_every_slot(store: Store, policy: Policy) -> None:
    # R1.9, R1.17
    await write_rules(store, policy)
    await register(store, "w1", slots=3)
    await register(store, "w2", slots=3)
    await queue(store, high=10)
    assert lanes(await fill(store, "w1", "w2", policy=policy)) == {"high": 6}


async def test_a_cap_counts_only_the_other_lanes(store: Store) -> None:
    # R1.14, R1.47: with the reserve in use by high, low still may hold all but two.
    await write_rules(store, CAP)
    await register(store, "w1", slots=6)
    await queue(store, high=2)
    assert lanes(await fill(store, "w1")) == {"high": 2}
    await queue(store, low=10)
    assert lanes(await fill(store, "w1")) == {"low": 4}


async def test_a_cap_is_kept_in_one_claim_too(store: Store) -> None:
    await write_rules(store, CAP)
    await register(store, "w1", slots=6)
    await queue(store, high=1, low=10)
    assert lanes(await fill(store, "w1")) == {"high": 1, "low": 4}


async def test_who_must_leave_slots_free_counts_everything_that_runs(store: Store) -> None:
    # R1.47: trunk reservation. High takes two of six slots, so only two are left for low, and two stay free.
    await write_rules(store, LEAVE_FREE)
    await register(store, "w1", slots=6)
    await queue(store, high=2)
    assert lanes(await fill(store, "w1", policy=LEAVE_FREE)) == {"high": 2}
    await queue(store, low=10)
    assert lanes(await fill(store, "w1", policy=LEAVE_FREE)) == {"low": 2}


async def test_who_must_leave_slots_free_counts_what_starts_in_the_same_claim(store: Store) -> None:
    # R1.47
    await write_rules(store, LEAVE_FREE)
    await register(store, "w1", slots=6)
    await queue(store, high=2, low=10)
    assert lanes(await fill(store, "w1", policy=LEAVE_FREE)) == {"high": 2, "low": 2}


async def test_what_ends_makes_room(store: Store) -> None:
    await write_rules(store, CAP)
    await register(store, "w1", slots=4)
    await queue(store, low=10)
    leases = await fill(store, "w1")
    assert lanes(leases) == {"low": 2}
    assert lanes(await fill(store, "w1")) == {}
    await end(store, leases[0])
    assert lanes(await fill(store, "w1")) == {"low": 1}


async def test_a_worker_that_waits_is_woken_when_there_is_room(store: Store) -> None:
    await write_rules(store, CAP)
    await register(store, "w1", slots=2)
    await register(store, "w2", slots=1)
    await queue(store, low=2)
    [lease] = await fill(store, "w1")
    assert not (await ask(store, "w2", policy=CAP, wait=True)).leases
    subscription = store.subscribe("w2")
    try:
        await end(store, lease)
        assert await subscription.wait(1) is not None
    finally:
        subscription.close()


async def test_a_worker_that_joins_brings_room(store: Store) -> None:
    # R1.25
    await write_rules(store, CAP)
    await register(store, "w1", slots=2)
    await queue(store, low=10)
    assert lanes(await fill(store, "w1")) == {}
    await register(store, "w2", slots=3)
    assert lanes(await fill(store, "w1", "w2")) == {"low": 3}


@pytest.mark.parametrize("policy", RULES)
@pytest.mark.parametrize("way", ["drains", "dies", "is buried"])
async def test_a_worker_that_leaves_takes_its_slots_with_it(
    store: Store, clock: ManualClock, policy: Policy, way: str
) -> None:
    # R1.25: what runs beyond that goes on, and the reserve is there again once enough has ended.
    await write_rules(store, policy)
    stays = await register(store, "stays", slots=4)
    await register(store, "leaves", slots=4)
    await queue(store, low=20)
    leases = await fill(store, "stays", policy=policy, free=4)
    assert lanes(leases) == {"low": 4}
    match way:
        case "drains":
            assert await store.drain("leaves")
        case "is buried":
            await store.mark_dead("leaves")
        case _:
            clock.advance(ms=LEASE_MS - 1)
            await beat(store, stays, held=leases)
            clock.advance(ms=1)
    for lease in leases[:2]:
        await end(store, lease)
        assert lanes(await fill(store, "stays", policy=policy)) == {}
    await end(store, leases[2])
    assert lanes(await fill(store, "stays", policy=policy)) == {"low": 1}


async def test_a_reserve_as_large_as_the_pool_keeps_the_others_out(store: Store) -> None:
    await write_rules(store, CAP)
    await register(store, "w1", slots=2)
    await queue(store, low=3, high=3)
    assert lanes(await fill(store, "w1")) == {"high": 2}


async def test_any_lanes_may_be_the_reserves(store: Store) -> None:
    policy = Policy(reserve=Reserve(frozenset({"high", "medium"}), 2, "pool"))
    await write_rules(store, policy)
    await register(store, "w1", slots=3)
    await submit(store, *(a_job(lane=lane) for lane in ("low", "low", "low", "medium", "medium", "medium")))
    assert lanes(await fill(store, "w1", policy=policy, free=1)) == {"medium": 1}
    assert lanes(await fill(store, "w1", policy=policy)) == {"medium": 2}


async def test_another_policy_changes_the_reserve_at_once(store: Store) -> None:
    await write_rules(store, CAP)
    await register(store, "w1", slots=6)
    await queue(store, low=20)
    assert lanes(await fill(store, "w1")) == {"low": 4}
    more = Policy(reserve=Reserve(slots=1, scope="pool"))
    await write_rules(store, more)
    assert lanes(await fill(store, "w1", policy=more)) == {"low": 1}
    none = Policy(reserve=Reserve(slots=0, scope="pool"))
    await write_rules(store, none)
    assert lanes(await fill(store, "w1", policy=none)) == {"low": 1}


async def test_a_reserve_of_each_worker_is_none_of_the_stores_business(store: Store) -> None:
    # R1.23: there it is the plan that says how many may come from below.
    await write_rules(store, Policy(reserve=Reserve(slots=2)))
    await register(store, "w1", slots=4)
    await queue(store, low=10)
    assert lanes(list((await ask(store, "w1", free=4, free_below=2)).leases)) == {"low": 2}
    assert lanes(list((await ask(store, "w1", free=2, free_below=1)).leases)) == {"low": 1}
