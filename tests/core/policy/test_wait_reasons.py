"""Past reasons to wait: intervals of samples, and the sums made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import ClassKey, JobId, JobRecord, State
from headway.core.policy.enforced import PAUSE
from headway.core.policy.wait_reasons import (
    GAP_MS,
    UNSAMPLED,
    UNSAMPLED_SHOWN_MS,
    WaitInterval,
    append_sample,
    blocked_queue_reason,
    waited_ms,
)

KEY = ClassKey("medium")
BEGAN_AT = 1_000_000


def a_job(
    waited: int | None = 10_000, *, eligible_at: int | None = BEGAN_AT, blocked_for: str | None = None, blocked: int = 0
) -> JobRecord:
    """Return a job that waited this long and has started, or that still waits if None."""
    started_at = None if waited is None else (eligible_at or 0) + waited
    return JobRecord(
        job_id=JobId("j"), seq=1, task="t", payload=b"", state=State.EXECUTING, lane="medium", needs=(), rung=None,
        tenant=None, max_retries=0, timeout_ms=1, retry=None, attempts=1, crashes=0, epoch=1, submitted_at=BEGAN_AT,
        due_at=None, eligible_at=eligible_at, started_at=started_at, finished_at=None, expires_at=None,
        cancel_requested_at=None, worker_id=None, progress=None, note=None, result=None, result_error=None, error=None,
        reason=None, idempotency_key=None, unique_key=None, trace_id=None, history=(), blocked_for=blocked_for,
        blocked_ms=blocked,
    )  # fmt: skip


def a_stretch(from_ms: int, until_ms: int, reason: str = "slots_full") -> WaitInterval:
    """Return an interval, with times in milliseconds since the job began to wait."""
    return WaitInterval(KEY, BEGAN_AT + from_ms, BEGAN_AT + until_ms, reason)


# ---------------------------------------------------------------------- samples


def test_the_first_sample_begins_a_stretch() -> None:
    assert append_sample(None, KEY, "lane", 5) == WaitInterval(KEY, 5, 5, "lane")


def test_the_same_reason_goes_on() -> None:
    assert append_sample(WaitInterval(KEY, 5, 5, "lane"), KEY, "lane", 900) == WaitInterval(KEY, 5, 900, "lane")


def test_another_reason_begins_where_the_last_was_seen() -> None:
    assert append_sample(WaitInterval(KEY, 5, 700, "lane"), KEY, "slots_full", 1_400) == WaitInterval(
        KEY, 700, 1_400, "slots_full"
    )


@pytest.mark.parametrize("reason", ["lane", "slots_full"])
def test_after_a_gap_a_stretch_begins_anew(reason: str) -> None:
    last = WaitInterval(KEY, 5, 700, "lane")
    late_at = 700 + GAP_MS + 1
    assert append_sample(last, KEY, reason, late_at) == WaitInterval(KEY, late_at, late_at, reason)
    assert append_sample(last, KEY, "lane", late_at - 1) == WaitInterval(KEY, 5, late_at - 1, "lane")


# ---------------------------------------------------------------------- what is made of them


@pytest.mark.parametrize(
    "stretches, expected",
    [
        pytest.param([a_stretch(0, 10_000)], {"slots_full": 10_000}, id="one reason"),
        pytest.param([a_stretch(-60_000, 60_000)], {"slots_full": 10_000}, id="only while it waited"),
        pytest.param(
            [a_stretch(0, 4_000, "lane"), a_stretch(4_000, 10_000)],
            {"lane": 4_000, "slots_full": 6_000},
            id="one after the other",
        ),
        pytest.param(
            [a_stretch(4_000, 10_000), a_stretch(0, 4_000, "lane")],
            {"lane": 4_000, "slots_full": 6_000},
            id="in any order",
        ),
        pytest.param(
            [a_stretch(0, 3_000), a_stretch(3_000, 5_000, "lane"), a_stretch(5_000, 10_000)],
            {"slots_full": 8_000, "lane": 2_000},
            id="the same again",
        ),
        pytest.param([a_stretch(0, 8_000)], {"slots_full": 10_000}, id="what was seen last still holds"),
        pytest.param([a_stretch(0, 5_000)], {"slots_full": 5_000, "no_worker": 5_000}, id="but not for ever"),
        pytest.param([a_stretch(2_000, 10_000)], {"slots_full": 10_000}, id="the first sample came soon"),
        pytest.param([a_stretch(4_000, 10_000)], {"no_worker": 4_000, "slots_full": 6_000}, id="or late"),
        pytest.param(
            [a_stretch(0, 1_000), a_stretch(9_000, 10_000, "lane")],
            {"slots_full": 1_000, "no_worker": 8_000, "lane": 1_000},
            id="a gap in between",
        ),
        pytest.param([a_stretch(-5_000, -1_000)], {"no_worker": 10_000}, id="seen just before it came"),
        pytest.param([a_stretch(11_000, 12_000)], {"no_worker": 10_000}, id="seen only afterwards"),
        pytest.param([], {"no_worker": 10_000}, id="never seen"),
    ],
)
def test_each_reason_gets_its_part(stretches: list[WaitInterval], expected: dict[str, int]) -> None:
    assert waited_ms(a_job(), stretches) == expected


def test_a_stretch_that_ended_just_before_still_holds_for_a_moment() -> None:
    assert waited_ms(a_job(2_000), [a_stretch(-5_000, -1_000)]) == {"slots_full": 2_000}
    assert waited_ms(a_job(2_000), [a_stretch(-9_000, -GAP_MS - 1)]) == {UNSAMPLED: 2_000}


@pytest.mark.parametrize(
    "waited, expected",
    [
        pytest.param(0, {}, id="not at all"),
        pytest.param(UNSAMPLED_SHOWN_MS - 1, {}, id="not worth a word"),
        pytest.param(UNSAMPLED_SHOWN_MS, {UNSAMPLED: UNSAMPLED_SHOWN_MS}, id="told"),
        pytest.param(GAP_MS, {UNSAMPLED: GAP_MS}, id="still between two samples"),
        pytest.param(GAP_MS + 1, {"no_worker": GAP_MS + 1}, id="too long for that"),
    ],
)
def test_what_nobody_saw(waited: int, expected: dict[str, int]) -> None:
    assert waited_ms(a_job(waited), []) == expected


def test_time_in_a_park_is_counted_last_and_once() -> None:
    seen = [a_stretch(0, 10_000)]
    assert waited_ms(a_job(blocked_for="limit", blocked=7_000), seen) == {"slots_full": 3_000, "limit": 7_000}
    assert waited_ms(a_job(blocked_for="rate", blocked=10_000), seen) == {"rate": 10_000}


def test_a_class_that_waited_for_the_same_as_the_park_adds_up() -> None:
    seen = [a_stretch(0, 10_000, "paused")]
    assert waited_ms(a_job(blocked_for="paused", blocked=7_000), seen) == {"paused": 10_000}


def test_a_job_that_has_not_started_has_not_waited_for_anything_yet() -> None:
    assert waited_ms(a_job(None), [a_stretch(0, 10_000)]) == {}


@given(
    cuts=st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9_000)), max_size=6),
    waited=st.integers(0, 30_000),
    blocked=st.integers(0, 30_000),
)
def test_the_parts_are_the_whole(cuts: list[tuple[int, int]], waited: int, blocked: int) -> None:
    stretches: list[WaitInterval] = []
    at = -5_000
    for index, (gap, span) in enumerate(cuts):
        stretches.append(a_stretch(at + gap, at + gap + span, ("lane", "slots_full")[index % 2]))
        at += gap + span
    blocked = min(blocked, waited)
    found = waited_ms(a_job(waited, blocked_for="limit" if blocked else None, blocked=blocked), stretches)
    missing = waited - sum(found.values())
    assert 0 <= missing < UNSAMPLED_SHOWN_MS
    assert all(part > 0 for part in found.values())
    assert not blocked or found["limit"] == blocked


# ---------------------------------------------------------------------- parks


@pytest.mark.parametrize(
    "key, is_rate, expected",
    [
        ("account=7", False, "limit"),
        ("calls", True, "rate"),
        (f"{PAUSE}task:t", False, "paused"),
        (f"{PAUSE}tenant:acme", True, "paused"),
    ],
)
def test_a_park_is_named_by_what_its_jobs_wait_for(key: str, is_rate: bool, expected: str) -> None:
    assert blocked_queue_reason(key, is_rate=is_rate) == expected
