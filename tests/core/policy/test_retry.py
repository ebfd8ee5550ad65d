"""The end of a leased job: every ending, with every count that matters."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import JobError
from headway.core.job import MOVES, JobId, RetryRule, State
from headway.core.lease import Lease, ReportStatus, late_report_status
from headway.core.policy.document import BUILT_IN, INTERACTIVE
from headway.core.policy.retry import (
    DELAY_MS_MAX,
    Crashed,
    Ending,
    Raised,
    Released,
    Returned,
    Snoozed,
    Stopped,
    TimedOut,
    Unknown,
    backoff_ms,
    grown_timeout_ms,
    heed_cancel,
    judge,
)

BOOM = JobError("ValueError", "no")
FINAL = JobError("ValueError", "no", retriable=False)
CANCELLED = "cancelled while executing"
EVERY_ENDING: list[Ending] = [
    Returned(b"1"),
    Raised(BOOM),
    Raised(FINAL),
    Snoozed(5_000),
    TimedOut(BOOM),
    Stopped(),
    Crashed("signal 9"),
    Released(),
    Unknown(),
]


def a_lease(
    *,
    attempts: int = 1,
    crashes: int = 0,
    max_retries: int = 3,
    timeout_ms: int = 1_000,
    asked_timeout_ms: int = 1_000,
    retry: RetryRule | None = None,
    cancel_requested: bool = False,
    task: str = "export",
) -> Lease:
    return Lease(
        JobId("j"), 7, b"token", task, b"", "low", None, None, 4, attempts, crashes, max_retries, timeout_ms,
        asked_timeout_ms, retry, 0, cancel_requested, (), "w1",
    )  # fmt: skip


def test_the_endings_above_are_all_there_are() -> None:
    assert {type(ending) for ending in EVERY_ENDING} == set(get_args(Ending))


@pytest.mark.parametrize(
    "ending, lease, state, reason, attempts, crashes",
    [
        pytest.param(Returned(b"1"), a_lease(), State.COMPLETED, None, 1, 0, id="returned"),
        pytest.param(Returned(b"1"), a_lease(attempts=9, crashes=2), State.COMPLETED, None, 9, 2, id="returned late"),
        pytest.param(Raised(FINAL), a_lease(), State.FAILED, "not_retriable", 1, 0, id="R5.79 not retriable"),
        pytest.param(Raised(BOOM), a_lease(), State.QUEUED, "failed", 1, 0, id="raised"),
        pytest.param(Raised(BOOM), a_lease(attempts=3), State.QUEUED, "failed", 3, 0, id="raised, the last retry left"),
        pytest.param(
            Raised(BOOM), a_lease(attempts=4), State.DEAD_LETTER, "max_retries_exceeded", 4, 0,
            id="R2.43 R5.78 raised, no retry left",
        ),
        pytest.param(
            Raised(BOOM), a_lease(max_retries=0), State.DEAD_LETTER, "max_retries_exceeded", 1, 0, id="no retries"
        ),
        pytest.param(
            Raised(BOOM, after_ms=5), a_lease(attempts=4), State.DEAD_LETTER, "max_retries_exceeded", 4, 0,
            id="asking for a moment gives no attempt",
        ),
        pytest.param(TimedOut(BOOM), a_lease(), State.QUEUED, "timeout", 1, 0, id="timed out"),
        pytest.param(
            TimedOut(BOOM), a_lease(attempts=4), State.DEAD_LETTER, "max_retries_exceeded", 4, 0, id="timed out at last"
        ),
        pytest.param(Crashed("x"), a_lease(), State.QUEUED, "crash", 1, 1, id="R5.75 a crash is counted twice over"),
        pytest.param(Crashed("x"), a_lease(attempts=2, crashes=1), State.QUEUED, "crash", 2, 2, id="a second crash"),
        pytest.param(
            Crashed("x"), a_lease(attempts=3, crashes=2), State.DEAD_LETTER, "crash_limit", 3, 3,
            id="R2.57 the crash limit",
        ),
        pytest.param(
            Crashed("x"), a_lease(max_retries=0), State.DEAD_LETTER, "max_retries_exceeded", 1, 1,
            id="a crash with no retries never reruns",
        ),
        pytest.param(Snoozed(5), a_lease(attempts=4), State.QUEUED, "snoozed", 3, 0, id="a snooze costs nothing"),
        pytest.param(Snoozed(5, "rate"), a_lease(crashes=2), State.QUEUED, "rate", 0, 2, id="crashes stay"),
        pytest.param(Released(), a_lease(attempts=4), State.QUEUED, "released", 3, 0, id="a release costs nothing"),
        pytest.param(Unknown(), a_lease(), State.QUEUED, "unknown_task", 0, 0, id="R2.69 an unknown task is free"),
        pytest.param(Stopped(), a_lease(), State.CANCELLED, CANCELLED, 1, 0, id="stopped"),
    ],
)  # fmt: skip
def test_an_ending_and_the_counts_decide(
    ending: Ending, lease: Lease, state: State, reason: str | None, attempts: int, crashes: int
) -> None:
    report = judge(ending, lease, BUILT_IN)
    assert (report.job_id, report.seq, report.token) == (lease.job_id, lease.seq, lease.token)
    assert (report.state, report.reason, report.attempts, report.crashes) == (state, reason, attempts, crashes)
    assert not report.expired_only


@pytest.mark.parametrize("ending", EVERY_ENDING)
def test_a_job_asked_to_stop_never_goes_back_to_the_queue(ending: Ending) -> None:
    report = judge(ending, a_lease(cancel_requested=True), BUILT_IN)
    if judge(ending, a_lease(), BUILT_IN).state is State.QUEUED:
        assert (report.state, report.reason) == (State.CANCELLED, CANCELLED)
    else:
        assert report.state.ended


def test_a_crash_of_a_job_asked_to_stop_is_its_end_whatever_the_crash_limit() -> None:
    report = judge(Crashed("x"), a_lease(crashes=2, cancel_requested=True), BUILT_IN)
    assert (report.state, report.crashes) == (State.CANCELLED, 3)


@pytest.mark.parametrize("ending", EVERY_ENDING)
def test_a_cancel_the_worker_had_not_heard_of_changes_only_what_would_go_back(ending: Ending) -> None:
    report = judge(ending, a_lease(), BUILT_IN)
    heeded = heed_cancel(report)
    if report.state is State.QUEUED:
        assert heeded == report._replace(state=State.CANCELLED, reason=CANCELLED, timeout_ms=0)
    else:
        assert heeded == report


@pytest.mark.parametrize(
    "wanted, stands, answer",
    [
        (State.COMPLETED, State.COMPLETED, ReportStatus.DUPLICATE),
        (State.COMPLETED, State.QUEUED, ReportStatus.STALE),
        (State.COMPLETED, State.DEAD_LETTER, ReportStatus.STALE),
        (State.FAILED, State.COMPLETED, ReportStatus.STALE),
        (State.QUEUED, State.QUEUED, ReportStatus.DUPLICATE),
        (State.QUEUED, State.CANCELLED, ReportStatus.DUPLICATE),
    ],
)
def test_a_late_report_is_the_same_only_if_it_wanted_what_stands(
    wanted: State, stands: State, answer: ReportStatus
) -> None:
    report = judge(Returned(None), a_lease(), BUILT_IN)._replace(state=wanted)
    assert late_report_status(report, stands) is answer


@pytest.mark.parametrize("ending", EVERY_ENDING)
def test_every_report_is_a_legal_move(ending: Ending) -> None:
    assert judge(ending, a_lease(), BUILT_IN).state in MOVES[State.EXECUTING]


def test_a_result_goes_into_the_report() -> None:
    report = judge(Returned(b"\0"), a_lease(), BUILT_IN)
    assert (report.result, report.result_error, report.error) == (b"\0", None, None)
    report = judge(Returned(None, "too large"), a_lease(), BUILT_IN)
    assert (report.state, report.result_error) == (State.COMPLETED, "too large")


@pytest.mark.parametrize("ending", [Raised(BOOM), Raised(FINAL), TimedOut(BOOM)])
def test_an_error_goes_into_the_report(ending: Raised | TimedOut) -> None:
    assert judge(ending, a_lease(), BUILT_IN).error == ending.error
    assert judge(ending, a_lease(attempts=9), BUILT_IN).error == ending.error


def test_a_crash_tells_its_cause() -> None:
    assert judge(Crashed("signal 11"), a_lease(), BUILT_IN).error == JobError("WorkerDied", "signal 11")


def test_failures_wait_1_2_4_8_16_32_60_60_seconds() -> None:
    # R2.42
    waits = [judge(Raised(BOOM), a_lease(attempts=n, max_retries=99), BUILT_IN).delay_ms for n in range(1, 9)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


@pytest.mark.parametrize("ending", [TimedOut(BOOM), Crashed("x")])
def test_timeouts_and_crashes_back_off_too(ending: Ending) -> None:
    # R5.69
    assert judge(ending, a_lease(attempts=2), BUILT_IN).delay_ms == 2_000


@pytest.mark.parametrize("max_retries", [0, 1, 3, 5])
def test_a_job_that_always_fails_is_executed_once_more_than_its_retries(max_retries: int) -> None:
    # R2.43, R5.78
    executions = 0
    state = State.QUEUED
    while state is State.QUEUED:
        executions += 1
        state = judge(Raised(BOOM), a_lease(attempts=executions, max_retries=max_retries), BUILT_IN).state
    assert (executions, state) == (max_retries + 1, State.DEAD_LETTER)


@pytest.mark.parametrize(
    "rule, waits",
    [
        pytest.param(RetryRule("exponential", 100, 500), [100, 200, 400, 500, 500], id="exponential"),
        pytest.param(RetryRule("linear", 100, 350), [100, 200, 300, 350, 350], id="linear"),
        pytest.param(RetryRule("fixed", 100, 500), [100, 100, 100, 100, 100], id="fixed"),
        pytest.param(RetryRule("fixed", 900, 500), [500, 500, 500, 500, 500], id="the cap holds for the first"),
    ],
)
def test_a_jobs_own_rule_wins(rule: RetryRule, waits: list[int]) -> None:
    given_waits = [judge(Raised(BOOM), a_lease(attempts=n, max_retries=9, retry=rule), BUILT_IN) for n in range(1, 6)]
    assert [report.delay_ms for report in given_waits] == waits


def test_jitter_shortens_a_wait_by_its_part() -> None:
    # L4
    rule = RetryRule("fixed", 1_000, 1_000, jitter=0.5)
    assert [backoff_ms(rule, 1, chance=chance) for chance in (0.0, 0.5, 1.0)] == [1_000, 750, 500]
    assert backoff_ms(RetryRule(), 1, chance=0.9) == 1_000


def test_a_wait_is_bounded_however_many_attempts_there_were() -> None:
    assert backoff_ms(RetryRule(), 10**9) == 60_000


@pytest.mark.parametrize("asked, waits", [(0, 0), (7, 7), (-5, 0), (10**18, DELAY_MS_MAX)])
def test_a_task_may_say_when_and_odd_values_are_clamped(asked: int, waits: int) -> None:
    assert judge(Raised(BOOM, after_ms=asked), a_lease(attempts=2), BUILT_IN).delay_ms == waits
    assert judge(Snoozed(asked), a_lease(), BUILT_IN).delay_ms == waits


def test_a_timeout_grows_by_half_and_is_capped_at_four_times() -> None:
    # R5.72
    lease = a_lease(timeout_ms=300_000, asked_timeout_ms=300_000, max_retries=99)
    grown = []
    for _ in range(6):
        report = judge(TimedOut(BOOM), lease, BUILT_IN)
        grown.append(report.timeout_ms)
        lease = lease._replace(timeout_ms=report.timeout_ms)
    assert grown == [450_000, 675_000, 1_012_500, 1_200_000, 1_200_000, 1_200_000]


def test_growth_can_be_turned_off_and_only_a_timeout_causes_it() -> None:
    # R5.72
    assert grown_timeout_ms(a_lease(), replace(BUILT_IN, timeout_growth=1.0)) == 1_000
    for ending in (Raised(BOOM), Crashed("x"), Snoozed(1), Released(), Unknown()):
        assert judge(ending, a_lease(timeout_ms=1_500), BUILT_IN).timeout_ms == 1_500


def test_only_what_goes_back_unharmed_goes_to_the_front() -> None:
    front = [ending for ending in EVERY_ENDING if judge(ending, a_lease(), BUILT_IN).front]
    assert front == [Released(), Unknown()]


def test_an_unknown_task_becomes_a_need() -> None:
    assert judge(Unknown(), a_lease(task="resize"), BUILT_IN).needs == ("task:resize",)
    for ending in EVERY_ENDING[:-1]:
        assert judge(ending, a_lease(), BUILT_IN).needs == ()


@given(
    ending=st.sampled_from(EVERY_ENDING),
    attempts=st.integers(1, 50),
    crashes=st.integers(0, 5),
    max_retries=st.integers(0, 50),
    timeout_ms=st.integers(1, 10**9),
    cancel_requested=st.booleans(),
    chance=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 1),
)
def test_the_same_inputs_give_the_same_answer_and_it_keeps_the_rules(
    ending: Ending,
    attempts: int,
    crashes: int,
    max_retries: int,
    timeout_ms: int,
    cancel_requested: bool,
    chance: float,
    jitter: float,
) -> None:
    lease = a_lease(
        attempts=attempts,
        crashes=crashes,
        max_retries=max_retries,
        timeout_ms=timeout_ms,
        asked_timeout_ms=timeout_ms,
        cancel_requested=cancel_requested,
        retry=RetryRule(jitter=jitter),
    )
    report = judge(ending, lease, BUILT_IN, chance=chance)
    assert report == judge(ending, lease, BUILT_IN, chance=chance)
    assert report.state in MOVES[State.EXECUTING]
    assert 0 <= report.delay_ms <= DELAY_MS_MAX
    assert report.attempts in (attempts, attempts - 1)
    if report.state is State.QUEUED:
        assert not cancel_requested
        assert report.attempts <= max(max_retries, attempts - 1)
        assert timeout_ms <= report.timeout_ms <= 4 * timeout_ms
        assert report.crashes < max(BUILT_IN.crash_limit, crashes + 1)


@pytest.mark.parametrize("ending", EVERY_ENDING, ids=lambda ending: type(ending).__name__)
@pytest.mark.parametrize("crashes", [0, 9])
def test_a_session_never_goes_back_to_the_queue(ending: Ending, crashes: int) -> None:  # R3.30
    lease = a_lease(crashes=crashes, max_retries=0)._replace(rung=INTERACTIVE)
    report = judge(ending, lease, BUILT_IN)
    unharmed = isinstance(ending, (Snoozed, Released, Unknown, Stopped))
    expected = State.CANCELLED if unharmed else State.COMPLETED if isinstance(ending, Returned) else State.FAILED
    assert report.state is expected


@pytest.mark.parametrize("ending", EVERY_ENDING, ids=lambda ending: type(ending).__name__)
def test_a_job_that_cannot_be_read_is_a_dead_letter_whatever_ends_its_lease(ending: Ending) -> None:
    report = judge(ending, a_lease()._replace(unreadable="its record was cut"), BUILT_IN)
    if isinstance(ending, Returned):  # It ran all the same: it had started before the damage.
        assert report.state is State.COMPLETED
    else:
        assert (report.state, report.reason) == (State.DEAD_LETTER, "unreadable")
        assert report.error == JobError("UnreadableJob", "its record was cut", retriable=False)


def test_a_timeout_that_must_not_be_retried_ends_the_job() -> None:
    error = JobError("TimeoutError", "time limit (1 s)", retriable=False)
    report = judge(TimedOut(error), a_lease(max_retries=5), BUILT_IN)
    assert (report.state, report.reason, report.error) == (State.FAILED, "time_limit", error)
