"""Users share by work, each with a cap."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headway.core.job import NewJob
from headway.core.lease import Lease
from headway.core.policy.document import Policy
from tests.conformance.builders import a_job
from tests.policies.pool import Pool, example, ids


@pytest.fixture
def policy() -> Policy:
    return example("celery-routing")


@pytest.fixture
def uncapped(policy: Policy) -> Policy:
    """Return the policy without the cap, so that only shares are left."""
    return replace(policy, limits={})


def jobs(user: str, count: int = 1, *, task: str = "images.make") -> list[NewJob]:
    return [a_job(lane="normal", tenant=user, task=task) for _ in range(count)]


async def test_one_users_thousand_jobs_do_not_block_others(uncapped: Policy) -> None:
    # I8, L5, R4.1, R4.39: the cap has no part in it.
    pool = await Pool.open(uncapped, slots=4)
    await pool.submit(*jobs("bulk", 1_000))
    await pool.claim()
    [other] = await pool.submit(*jobs("other"))
    await pool.end(pool.running()[0])
    assert ids(await pool.claim()) == [other]


async def test_users_take_turns_however_much_each_has(uncapped: Policy) -> None:
    # R4.1, R4.25
    pool = await Pool.open(uncapped, slots=1)
    await pool.submit(*jobs("bulk", 1_000), *jobs("b", 10), *jobs("c", 10))
    claimed = Counter(lease.tenant for lease in await pool.run(30))
    assert claimed == {"bulk": 10, "b": 10, "c": 10}


async def test_a_batch_of_a_thousand_is_one_submission(uncapped: Policy) -> None:
    # R4.21, R4.22, R4.23
    pool = await Pool.open(uncapped, slots=1)
    submitted = await pool.submit(*jobs("bulk", 1_000))
    assert ids(await pool.run(20)) == submitted[:20]


async def test_shares_are_counted_in_work_not_in_jobs(uncapped: Policy) -> None:
    # R4.40
    pool = await Pool.open(uncapped, slots=1)
    await pool.expect(**{"videos.cut": 5.0, "images.make": 1.0})
    await pool.submit(*jobs("long", 50, task="videos.cut"), *jobs("short", 50))
    claimed = Counter(lease.tenant for lease in await pool.run(36))
    assert claimed["short"] == pytest.approx(5 * claimed["long"], abs=3)


async def test_a_user_with_three_times_the_weight_gets_three_times_the_work(uncapped: Policy) -> None:
    weighted = replace(uncapped, tenants=replace(uncapped.tenants, weights={"acme": 3}))
    pool = await Pool.open(weighted, slots=1)
    await pool.submit(*jobs("acme", 50), *jobs("b", 50))
    claimed = Counter(lease.tenant for lease in await pool.run(40))
    assert claimed["acme"] == pytest.approx(30, abs=1)


async def test_who_was_away_has_no_credit(uncapped: Policy) -> None:
    pool = await Pool.open(uncapped, slots=1)
    await pool.submit(*jobs("bulk", 200))
    await pool.run(100)
    await pool.submit(*jobs("late", 100))
    claimed = Counter(lease.tenant for lease in await pool.run(40))
    assert claimed["late"] == pytest.approx(20, abs=1)


async def test_cancelling_a_thousand_jobs_leaves_no_debt(uncapped: Policy) -> None:
    # R4.35
    pool = await Pool.open(uncapped, slots=1)
    mistaken = await pool.submit(*jobs("bulk", 1_000))
    await pool.submit(*jobs("b", 50))
    await pool.store.cancel(mistaken)
    await pool.submit(*jobs("bulk", 50))
    claimed = Counter(lease.tenant for lease in await pool.run(40))
    assert claimed["bulk"] == pytest.approx(20, abs=1)


async def test_nobody_has_more_than_four_jobs_running(policy: Policy) -> None:
    # R4.46
    pool = await Pool.open(policy, slots=10)
    await pool.submit(*jobs("bulk", 1_000), *jobs("b", 3))
    await pool.claim()
    assert Counter(lease.tenant for lease in pool.running()) == {"bulk": 4, "b": 3}
    assert await pool.claim() == []


async def test_jobs_held_back_by_a_cap_hold_back_nobody_and_keep_their_order(policy: Policy) -> None:
    # R4.46, R4.1: also with more of them than a claim looks at in one go.
    pool = await Pool.open(policy, slots=10)
    bulk = await pool.submit(*jobs("bulk", 500))
    await pool.claim()
    for user in ("b", "c"):
        [other] = await pool.submit(*jobs(user))
        claimed: list[Lease] = []
        while not claimed:
            claimed = await pool.claim()
        assert ids(claimed) == [other]
    await pool.end(*[lease for lease in pool.running() if lease.tenant == "bulk"][:2])
    assert ids(await pool.claim()) == bulk[4:6]


async def test_the_cap_holds_over_all_workers(policy: Policy) -> None:
    # R4.28, R4.46
    pool = await Pool.open(policy, slots=3)
    await pool.join("w2", slots=3)
    await pool.submit(*jobs("bulk", 100))
    await pool.claim("w1")
    await pool.claim("w2")
    assert len(pool.running()) == 4
