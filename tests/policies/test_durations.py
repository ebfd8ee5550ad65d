"""Limits by duration: short jobs pass long ones."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.core.errors import JobError, PolicyError
from headway.core.job import JobId, NewJob, State
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import Policy
from headway.core.policy.ladder import ElasticJob, Preemption, RunningJobs, RunningSession, admit, cycle
from headway.core.policy.lint import OfferedLoad, check_policy
from headway.core.policy.reader import read_policy
from headway.core.policy.retry import TimedOut
from headway.core.policy.writer import policy_data
from tests.conformance.builders import a_job
from tests.policies.pool import Pool, example, ids

LATE = JobError("TimeoutError", "time limit (3s)")


@pytest.fixture
def policy() -> Policy:
    return example("durations")


@pytest.fixture
async def pool(policy: Policy) -> Pool:
    """Return ten slots: at most six jobs may be above three seconds, and three of those above ten."""
    return await Pool.open(policy, slots=10)


def jobs(rung: str, count: int = 1) -> list[NewJob]:
    return [a_job(lane="normal", rung=rung, max_retries=0) for _ in range(count)]


def assigned(leases: list[Lease]) -> Counter[str | None]:
    return Counter(lease.assigned for lease in leases)


async def test_limits_are_nested(pool: Pool) -> None:
    # R3.2, R3.13, R3.14, R3.15
    await pool.submit(*jobs("slow", 20), *jobs("medium", 20), *jobs("fast", 20))
    await pool.claim()
    assert assigned(pool.running()) == {"slow": 3, "medium": 3, "fast": 4}


async def test_short_work_may_take_every_slot_and_long_work_may_not(pool: Pool) -> None:
    # R3.14, R3.15
    await pool.submit(*jobs("slow", 20))
    assert len(await pool.claim()) == 3
    await pool.submit(*jobs("fast", 20))
    assert len(await pool.claim()) == 7


async def test_short_work_passes_long_work_that_is_held_back(pool: Pool) -> None:
    # R3.6, R3.20, R3.22
    await pool.submit(*jobs("slow", 3), *jobs("medium", 3))
    await pool.claim()
    await pool.submit(*jobs("slow", 50), *jobs("medium", 50))
    quick = await pool.submit(*jobs("fast", 2))
    assert ids(await pool.claim()) == quick


async def test_a_job_that_was_passed_starts_as_soon_as_its_place_is_free(pool: Pool) -> None:
    # R3.92, R3.29
    await pool.submit(*jobs("slow", 3))
    running = await pool.claim()
    [held_back] = await pool.submit(*jobs("slow"))
    await pool.submit(*jobs("fast", 30))
    await pool.claim()
    assert held_back not in ids(pool.running())
    await pool.end(running[0])
    assert ids(await pool.claim()) == [held_back]


async def test_among_those_that_fit_the_first_comes_first(policy: Policy) -> None:
    # R3.74
    pool = await Pool.open(policy, slots=1)
    submitted = await pool.submit(*(job for rung in ("slow", "fast", "medium", "fast") for job in jobs(rung)))
    assert ids(await pool.run(4)) == submitted


async def test_an_elastic_job_gets_the_longest_duration_that_fits(pool: Pool) -> None:
    # R3.3, R3.9, R3.27, R3.16: it counts where it was assigned, so the fourth finds no slow place.
    await pool.submit(*jobs("default", 10))
    claimed = await pool.claim()
    assert [lease.assigned for lease in claimed] == ["slow"] * 3 + ["medium"] * 3 + ["fast"] * 4
    assert [lease.limit_ms for lease in claimed] == [30_000] * 3 + [10_000] * 3 + [3_000] * 4


async def test_an_elastic_job_queues_as_the_shortest(pool: Pool) -> None:
    # R3.7, R3.8
    await pool.submit(*jobs("slow", 3), *jobs("medium", 3))
    await pool.claim()
    await pool.submit(*jobs("medium", 5))
    [elastic] = await pool.submit(*jobs("default"))
    [lease] = await pool.claim()
    assert (lease.job_id, lease.assigned) == (elastic, "fast")


async def test_parts_follow_the_slots_that_are_there(pool: Pool) -> None:
    # R3.72, R3.73, R3.78
    await pool.submit(*jobs("slow", 30))
    await pool.claim("w1")
    await pool.join("w2", slots=10)
    await pool.claim("w2")
    assert assigned(pool.running()) == {"slow": 6}
    await pool.leave("w1")
    assert await pool.claim("w2") == []  # The leases of the other still count, and nothing goes below nought.


@pytest.mark.parametrize("slots, slow", [(1, 1), (3, 1), (6, 1), (7, 2), (10, 3), (33, 9)])
async def test_parts_are_rounded_down_and_never_to_nothing(policy: Policy, slots: int, slow: int) -> None:
    # R3.73, R3.13
    pool = await Pool.open(policy, slots=slots)
    await pool.submit(*jobs("slow", 40))
    assert len(await pool.claim()) == slow


async def test_a_job_that_is_over_its_duration_has_failed_for_good(pool: Pool) -> None:
    # R3.5, R3.35
    [job_id] = await pool.submit(*jobs("fast"))
    [lease] = await pool.claim()
    assert lease.limit_ms == 3_000
    await pool.end(lease, ending=TimedOut(LATE))
    [job] = await pool.store.get([job_id])
    assert job is not None
    assert (job.state, job.reason, job.error) == (State.FAILED, "time_limit", LATE)


async def test_a_place_is_given_back_once(pool: Pool) -> None:
    # R3.70, R3.71
    await pool.submit(*jobs("slow", 10))
    first, *_ = await pool.claim()
    await pool.end(first)
    assert await pool.report_again(first) is ReportStatus.DUPLICATE
    await pool.claim()
    assert assigned(pool.running()) == {"slow": 3}


def test_limits_that_break_the_order_are_refused(policy: Policy) -> None:
    # R3.17
    data = policy_data(policy)
    data["ladder"]["rungs"][2]["limit"] = "70%"
    with pytest.raises(PolicyError, match="at most 60, the limit of a shorter rung"):
        read_policy(data, "durations.toml")


def test_a_limit_below_the_work_that_comes_in_is_reported(policy: Policy) -> None:
    # R3.36
    findings = check_policy(policy, slots=10, load=OfferedLoad(rungs={"fast": 2.0, "slow": 4.0})).findings
    assert [(finding.code, finding.key) for finding in findings] == [("below_load", "ladder.rungs[2].limit")]


# ---------------------------------------------------------------------- how room is made

FAST, MEDIUM, SLOW = range(3)


def some_running_jobs(*elastic: int, others: tuple[int, int, int] = (0, 0, 0), sessions: int = 0) -> RunningJobs:
    """Return running jobs on ten slots: elastic ones on these rungs, the oldest first, and others by rung."""
    running = tuple(ElasticJob(JobId(f"e{at}"), rung, started_at=at) for at, rung in enumerate(elastic))
    counts = tuple(others[rung] + elastic.count(rung) for rung in range(3))
    halting = tuple(RunningSession(JobId(f"s{at}"), started_at=at) for at in range(sessions))
    return RunningJobs(10, 10 - sum(counts) - sessions, counts, running, halting)


@pytest.mark.parametrize(
    "running_jobs, waiting, starts, lowered",
    [
        pytest.param(
            some_running_jobs(SLOW, SLOW, SLOW),
            "slow",
            True,
            {"e2": "medium"},
            id="R3.18, R3.32 the youngest goes to medium",
        ),
        pytest.param(
            some_running_jobs(SLOW, SLOW, SLOW, others=(0, 3, 0)),
            "slow",
            True,
            {"e2": "fast"},
            id="R3.19 medium is full too",
        ),
        pytest.param(
            some_running_jobs(others=(0, 0, 3)), "slow", False, {}, id="R3.20 nobody to lower: slow is passed over"
        ),
        pytest.param(
            some_running_jobs(MEDIUM, SLOW, others=(0, 4, 0)),
            "medium",
            True,
            {"e1": "fast"},
            id="R3.21 the longest is lowered",
        ),
        pytest.param(
            some_running_jobs(MEDIUM, others=(0, 5, 0)),
            "medium",
            True,
            {"e0": "fast"},
            id="R3.21 else one that is medium",
        ),
        pytest.param(
            some_running_jobs(others=(0, 6, 0)), "medium", False, {}, id="R3.22 nobody to lower: medium is passed over"
        ),
        pytest.param(
            some_running_jobs(MEDIUM, SLOW, others=(8, 0, 0)),
            "fast",
            False,
            {"e0": "fast", "e1": "fast"},
            id="R3.23, R3.24, R3.33 all are lowered, and no slot is free at once",
        ),
        pytest.param(
            some_running_jobs(others=(9, 0, 0), sessions=1), "fast", False, {"s0": None}, id="R3.25 a session is halted"
        ),
    ],
)
def test_room_is_made_for_those_who_wait(
    policy: Policy, running_jobs: RunningJobs, waiting: str, starts: bool, lowered: dict[str, str | None]
) -> None:
    decided = cycle(policy.ladder, running_jobs, [waiting])
    assert bool(decided.starts) is starts
    assert set(decided.amendments) == {Preemption(JobId(name), rung) for name, rung in lowered.items()}


def test_a_session_is_never_queued_and_its_denial_lowers_one(policy: Policy) -> None:
    # R3.30, R3.31
    assert admit(policy.ladder, some_running_jobs(SLOW)) == (True, ())
    admitted, amended = admit(policy.ladder, some_running_jobs(SLOW, MEDIUM, others=(8, 0, 0)))
    assert (admitted, amended) == (False, (Preemption(JobId("e0"), "medium"),))
