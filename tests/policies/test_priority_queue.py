"""Three priorities and promotion by age: the literal rule, and why it is not the default."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from headway.core.job import JobId, NewJob
from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.lanes import effective_lane
from headway.core.policy.lint import check_policy
from headway.core.policy.retry import Raised
from tests.conformance.builders import BOOM, a_job, pump
from tests.policies.pool import Pool, example, ids

DAY_MS = 24 * 3_600_000


@pytest.fixture
def policy() -> Policy:
    return example("priority-queue")


@pytest.fixture
def sharing(policy: Policy) -> Policy:
    """Return the same policy with the default rule of promotion."""
    return replace(policy, promotion="share")


@pytest.fixture
async def pool(policy: Policy) -> Pool:
    return await Pool.open(policy, slots=1)


def jobs(lane: str, count: int = 1, *, tenant: str | None = None) -> list[NewJob]:
    return [a_job(lane=lane, tenant=tenant) for _ in range(count)]


def test_it_is_the_built_in_policy_but_for_promotion_and_reserve(policy: Policy) -> None:
    # R5.25, R5.33, R5.34, R5.35, R5.36, R5.72, R5.80
    assert replace(policy, promotion=BUILT_IN.promotion, reserve=BUILT_IN.reserve) == BUILT_IN
    lanes = {name: (lane.max_retries, lane.timeout_ms) for name, lane in policy.lanes.items()}
    assert lanes == {"high": (5, 300_000), "medium": (3, 600_000), "low": (2, 900_000)}
    assert (policy.keep.dead_letter_ms, policy.keep.idempotency_ms) == (30 * DAY_MS, DAY_MS)


async def test_priorities_are_served_in_order_and_the_first_comes_first_in_each(pool: Pool) -> None:
    # R5.3, R5.11, R5.49
    low, medium, high = [await pool.submit(*jobs(lane, 5)) for lane in ("low", "medium", "high")]
    assert ids(await pool.run(15)) == [*high, *medium, *low]


@pytest.mark.parametrize(
    "aged, waited, fresh, first",
    [
        pytest.param("low", 599, "medium", "medium", id="low is low before 10 minutes"),
        pytest.param("low", 600, "medium", "low", id="R5.6 low is medium after 10 minutes, and older"),
        pytest.param("low", 600, "high", "high", id="R5.6 but not yet high"),
        pytest.param("medium", 1_199, "high", "high", id="medium is medium before 20 minutes"),
        pytest.param("medium", 1_200, "high", "medium", id="R5.7 medium is high after 20 minutes, and older"),
        pytest.param("low", 1_199, "high", "high", id="low is not high before 20 minutes"),
        pytest.param("low", 1_200, "high", "low", id="R5.63 low is high after 20 minutes, not 30"),
    ],
)
async def test_age_promotes(pool: Pool, aged: str, waited: int, fresh: str, first: str) -> None:
    # R5.5, R5.13
    await pool.submit(*jobs(aged))
    pool.clock.advance(waited)
    await pool.submit(*jobs(fresh))
    [lease] = await pool.claim()
    assert lease.lane == first


async def test_all_that_has_aged_is_promoted_at_once_and_nothing_else(pool: Pool) -> None:
    # R5.8, R5.9, R5.64, R5.67: no mover, no minute to wait for, no batch.
    aged = await pool.submit(*jobs("low", 300))
    pool.clock.advance(300)
    await pool.submit(*jobs("low", 5))
    pool.clock.advance(300)
    await pool.submit(*jobs("medium", 5))
    claimed = await pool.run(305, seconds=0)
    assert ids(claimed[:300]) == aged
    assert [lease.lane for lease in claimed[300:]] == ["medium"] * 5


@pytest.mark.parametrize(
    "lane, waited, shown",
    [
        ("low", 599, "low"),
        ("low", 600, "medium"),
        ("low", 1_200, "high"),
        ("medium", 1_199, "medium"),
        ("medium", 1_200, "high"),
        ("high", 9_999, "high"),
    ],
)
async def test_a_job_shows_what_its_age_has_made_of_it(pool: Pool, lane: str, waited: int, shown: str) -> None:
    # R5.10, R5.62
    [job_id] = await pool.submit(*jobs(lane))
    pool.clock.advance(waited)
    [job] = await pool.store.get([job_id])
    assert job is not None
    assert effective_lane(pool.policy, job, pool.clock()) == shown


@pytest.mark.parametrize("rule", ["absolute", "share"])
async def test_promotion_neither_loses_nor_repeats_a_job(policy: Policy, rule: str) -> None:
    # R5.61: jobs are claimed while they rise, by two workers.
    chance = random.Random(7)
    pool = await Pool.open(replace(policy, promotion=rule), slots=2)
    await pool.join("w2", slots=2)
    submitted: list[JobId] = []
    claimed: list[JobId] = []
    for _ in range(60):
        for lane in ("high", "medium", "low"):
            submitted += await pool.submit(*jobs(lane, chance.randrange(3)))
        for name in ("w1", "w2"):
            claimed += ids(await pool.run(1, name, seconds=30))
    claimed += ids(await pool.run(200))
    assert sorted(claimed) == sorted(submitted)


async def test_a_retry_keeps_its_priority_but_not_its_age(pool: Pool) -> None:
    # R5.68, R5.70
    [job_id] = await pool.submit(*jobs("low"))
    pool.clock.advance(1_199)
    await pool.end(*await pool.claim(), ending=Raised(BOOM))
    pool.clock.advance(1)
    await pump(pool.store)
    pool.clock.advance(599)
    fresh = await pool.submit(*jobs("medium"))
    assert ids(await pool.run(2)) == [*fresh, job_id]
    [job] = await pool.store.get([job_id])
    assert job is not None
    assert job.lane == "low"


# ---------------------------------------------------------------------- why a share is the default


async def test_under_the_literal_rule_a_backlog_goes_before_all_fresh_work(policy: Policy) -> None:
    # R5.65: 5 slots, and 500 jobs that have grown old; high waits for every one of them.
    assert await _turns_until_high_starts(policy) == 100


async def test_with_shares_a_backlog_costs_fresh_work_next_to_nothing(sharing: Policy) -> None:
    # R5.65
    assert await _turns_until_high_starts(sharing) == 0


async def _turns_until_high_starts(policy: Policy) -> int:
    pool = await Pool.open(policy, slots=5)
    await pool.submit(*jobs("low", 500))
    pool.clock.advance(1_800)
    await pool.submit(*jobs("high"))
    for turn in range(200):
        if "high" in {lease.lane for lease in await pool.run(1)}:
            return turn
    raise AssertionError("high was never served")


async def test_with_shares_an_aged_lane_gets_what_its_weight_says(sharing: Policy) -> None:
    # R5.12: no wait is promised that cannot be kept, but from this age on a part of the slots is.
    [low] = [sure for sure in check_policy(sharing, slots=10).guarantees if sure.lane == "low"]
    assert (low.after_ms, low.share) == (1_200_000, 1 / 10)
    pool = await Pool.open(sharing, slots=10)
    await pool.submit(*(job for lane in ("high", "medium", "low") for job in jobs(lane, 2_000)))
    pool.clock.advance(1_200)
    claimed = Counter(lease.lane for lease in await pool.run(100))
    assert claimed["low"] == pytest.approx(100, abs=5)
    assert claimed["medium"] == pytest.approx(300, abs=5)
    assert claimed["high"] == pytest.approx(600, abs=5)


@pytest.mark.parametrize("rule", ["absolute", "share"])
async def test_one_tenants_old_backlog_does_not_go_before_the_other_tenants_of_its_lane(
    policy: Policy, rule: str
) -> None:
    # R5.66
    pool = await Pool.open(replace(policy, promotion=rule), slots=1)
    await pool.submit(*jobs("low", 500, tenant="bulk"))
    pool.clock.advance(1_800)
    await pool.run(5)
    await pool.submit(*jobs("low", 3, tenant="other"))
    claimed = Counter(lease.tenant for lease in await pool.run(6))
    assert claimed == {"bulk": 3, "other": 3}
