"""Two priorities and a reserved slot."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headway.core.policy.document import Policy
from tests.conformance.builders import a_job
from tests.policies.pool import Pool, example, ids


@pytest.fixture
def policy() -> Policy:
    return example("fasdis")


@pytest.fixture
async def pool(policy: Policy) -> Pool:
    return await Pool.open(policy, slots=3)


@pytest.mark.parametrize(
    "steps, high, low",
    [
        pytest.param(["low" for _ in range(9)], 0, 2, id="R1.12 all low: a third waits"),
        pytest.param(["high" for _ in range(9)], 3, 0, id="R1.13 all high"),
        pytest.param(["low", "low", "claim", "high"], 1, 2, id="R1.14 mixed: one high beside two low"),
        pytest.param(["high", "low", "low", "claim", "low"], 1, 2, id="R1.15 low tries a third slot"),
        pytest.param(["claim", "high", "claim", "high", "high"], 3, 0, id="R1.16 high bursts, no low"),
        pytest.param(["high", "high", "claim", "low", "low"], 2, 1, id="R1.18 low needs room in both limits"),
        pytest.param(["low", "high", "high", "high"], 3, 0, id="R1.17 high needs only a free slot"),
    ],
)
async def test_the_table_of_what_may_run(pool: Pool, steps: list[str], high: int, low: int) -> None:
    # R1.11
    for step in [*steps, "claim"]:
        if step == "claim":
            await pool.claim()
        else:
            await pool.submit(a_job(lane=step))
    assert (pool.count("high"), pool.count("low")) == (high, low)


async def test_a_high_job_starts_at_once_though_low_work_saturates_the_worker(pool: Pool) -> None:
    # I8, R1.8
    await pool.submit(*(a_job(lane="low") for _ in range(50)))
    await pool.claim()
    [urgent] = await pool.submit(a_job(lane="high"))
    assert ids(await pool.claim()) == [urgent]


async def test_each_priority_may_use_all_that_is_not_kept_from_it(pool: Pool) -> None:
    # R1.9, R1.10, R1.19: what has nothing to do holds no slot.
    for lane, most in (("high", 3), ("low", 2), ("high", 3)):
        await pool.submit(*(a_job(lane=lane) for _ in range(most)))
        claimed = await pool.claim()
        assert [lease.lane for lease in claimed] == [lane] * most
        await pool.end(*claimed)


@pytest.mark.parametrize("seed", range(5))
async def test_no_history_breaks_either_limit(pool: Pool, seed: int) -> None:
    # R1.7, R1.11
    chance = random.Random(seed)
    for _ in range(300):
        match chance.choice(["submit", "claim", "end"]):
            case "submit":
                await pool.submit(*(a_job(lane=chance.choice(["high", "low"])) for _ in range(chance.randrange(3))))
            case "claim":
                await pool.claim()
            case _:
                await pool.end(*chance.sample(pool.running(), min(1, len(pool.running()))))
        pool.clock.advance(chance.choice([0, 1, 30]))
        assert len(pool.running()) <= 3
        assert pool.count("low") <= 2


async def test_a_freed_slot_goes_by_level_not_by_turns(pool: Pool) -> None:
    # R1.43
    await pool.submit(a_job(lane="high"), a_job(lane="low"), a_job(lane="low"))
    await pool.claim()
    await pool.submit(a_job(lane="low"))
    [urgent] = await pool.submit(a_job(lane="high"))
    pool.clock.advance(59)
    await pool.end(next(lease for lease in pool.running() if lease.lane == "low"))
    assert ids(await pool.claim()) == [urgent]


async def test_high_work_without_end_leaves_low_its_share_after_a_minute(pool: Pool) -> None:
    # R1.44, R1.43
    await pool.submit(*(a_job(lane="low") for _ in range(200)), *(a_job(lane="high") for _ in range(600)))
    early = await pool.run(59)
    assert {lease.lane for lease in early} == {"high"}
    late = [lease.lane for lease in await pool.run(102)]
    assert late.count("low") / len(late) == pytest.approx(1 / 4, abs=0.03)


async def test_a_job_waits_in_no_workers_hands(pool: Pool) -> None:
    # R1.20, R1.22: one worker is full, so the other gets the job.
    await pool.join("w2", slots=3)
    await pool.submit(*(a_job(lane="high") for _ in range(3)))
    await pool.claim("w1")
    [job_id] = await pool.submit(a_job(lane="high"))
    assert await pool.claim("w1") == []
    assert ids(await pool.claim("w2")) == [job_id]


@pytest.mark.parametrize("lane, most", [("low", 6), ("high", 9)])
async def test_three_workers_have_three_times_the_room(pool: Pool, lane: str, most: int) -> None:
    # R1.23, R1.24
    await pool.join("w2", slots=3)
    await pool.join("w3", slots=3)
    await pool.submit(*(a_job(lane=lane) for _ in range(20)))
    for name in ("w1", "w2", "w3"):
        await pool.claim(name)
    assert pool.count(lane) == most


async def test_the_slot_may_be_kept_in_the_whole_pool_instead(policy: Policy) -> None:
    # R1.25
    pool = await Pool.open(replace(policy, reserve=replace(policy.reserve, scope="pool")), slots=3)
    await pool.join("w2", slots=3)
    await pool.submit(*(a_job(lane="low") for _ in range(20)))
    await pool.claim("w1")
    await pool.claim("w2")
    assert pool.count("low") == 5


async def test_the_other_rule_leaves_a_slot_free_whoever_holds_the_rest(policy: Policy) -> None:
    # R1.47
    pool = await Pool.open(replace(policy, reserve=replace(policy.reserve, rule="leave_free")), slots=3)
    await pool.submit(a_job(lane="high"), a_job(lane="high"))
    await pool.claim()
    await pool.submit(a_job(lane="low"))
    assert await pool.claim() == []
    await pool.end(pool.running()[0])
    assert [lease.lane for lease in await pool.claim()] == ["low"]


@pytest.mark.parametrize("lane", ["high", "low"])
async def test_within_a_priority_the_first_comes_first(pool: Pool, lane: str) -> None:
    # R1.37
    submitted = await pool.submit(*(a_job(lane=lane) for _ in range(12)))
    assert ids(await pool.run(6)) == submitted


def test_low_is_what_a_job_is_that_asks_for_nothing(policy: Policy) -> None:
    # R1.32, R1.27, R1.39
    assert policy.default_lane == "low"
    assert policy.reserve.slots == 1
    assert policy.keep.completed_ms == 3_600_000
