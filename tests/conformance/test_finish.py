"""Finishing: one outcome counts, under the token of the lease, and attempts are stored as core judged them."""

from __future__ import annotations

import pytest

from headway.core.errors import JobError
from headway.core.job import JobId, State
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Crashed, Ending, Raised, Released, Returned, Snoozed, Stopped, TimedOut, judge
from headway.stores.base import Exchange, Progress, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    LEASE_MS,
    a_job,
    an_id,
    claim,
    claim_one,
    end,
    ended_job,
    reap,
    register,
    report,
    state_of,
    submit,
    submit_one,
    the_job,
)

FINAL = JobError("ValueError", "bad", "Traceback: …", retriable=False)


async def test_a_result_is_kept_with_who_made_it_and_when(store: Store, clock: ManualClock) -> None:
    # R2.41, R2.29
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=70)
    assert await end(store, lease, Returned(b"42")) is ReportStatus.OK
    job = await the_job(store, job_id)
    assert (job.state, job.result, job.result_error, job.error, job.reason) == (
        State.COMPLETED, b"42", None, None, None,
    )  # fmt: skip
    assert (job.worker_id, job.started_at, job.finished_at) == ("w1", clock() - 70, clock())
    assert (job.attempts, job.crashes, job.epoch, job.history) == (1, 0, 1, ())


async def test_no_result_and_an_empty_one_are_different(store: Store) -> None:
    for result in (None, b""):
        job_id = await submit_one(store)
        await register(store)
        await end(store, await claim_one(store), Returned(result))
        assert (await the_job(store, job_id)).result == result


async def test_a_result_that_could_not_be_stored_still_completes_the_job(store: Store) -> None:
    # R2.64
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Returned(None, "object of type socket"))
    job = await the_job(store, job_id)
    assert (job.state, job.result, job.result_error) == (State.COMPLETED, None, "object of type socket")


async def test_a_failure_is_kept_with_type_message_and_traceback(store: Store, clock: ManualClock) -> None:
    # R1.45, R5.79
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=5)
    await end(store, lease, Raised(FINAL))
    job = await the_job(store, job_id)
    assert (job.state, job.reason, job.error) == (State.FAILED, "not_retriable", FINAL)
    [attempt] = job.history
    assert (attempt.number, attempt.epoch, attempt.worker_id) == (1, 1, "w1")
    assert (attempt.started_at, attempt.ended_at) == (clock() - 5, clock())
    assert (attempt.reason, attempt.error) == ("not_retriable", FINAL)


async def test_a_job_that_fails_always_runs_once_more_than_its_retries(store: Store, clock: ManualClock) -> None:
    # R2.43, R5.78
    job_id = await submit_one(store, a_job(max_retries=3))
    await register(store, lease_ms=10**9)
    runs = 0
    while leases := await claim(store):
        runs += 1
        await end(store, leases[0], Raised(BOOM))
        clock.advance(seconds=60)
    job = await the_job(store, job_id)
    assert runs == 4
    assert (job.state, job.reason, job.attempts) == (State.DEAD_LETTER, "max_retries_exceeded", 4)
    assert [attempt.number for attempt in job.history] == [1, 2, 3, 4]
    assert [attempt.epoch for attempt in job.history] == [1, 2, 3, 4]


async def test_a_failed_job_waits_as_long_as_core_said(store: Store, clock: ManualClock) -> None:
    # R5.69: a retry backs off.
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM))
    job = await the_job(store, job_id)
    assert (job.state, job.due_at, job.eligible_at) == (State.QUEUED, clock() + 1_000, None)
    assert (job.reason, job.error) == ("failed", BOOM)
    clock.advance(ms=999)
    assert await claim(store) == []
    clock.advance(ms=1)
    assert len(await claim(store)) == 1


async def test_a_longer_timeout_goes_with_the_job_to_its_next_attempt(store: Store, clock: ManualClock) -> None:
    # R5.72
    job_id = await submit_one(store, a_job(timeout_ms=1_000))
    await register(store)
    await end(store, await claim_one(store), TimedOut(BOOM))
    assert (await the_job(store, job_id)).timeout_ms == 1_500
    clock.advance(seconds=1)
    lease = await claim_one(store)
    assert (lease.timeout_ms, lease.asked_timeout_ms) == (1_500, 1_000)


@pytest.mark.parametrize("ending", [Released(), Snoozed(0), Snoozed(500)])
async def test_an_ending_that_is_nobodys_fault_gives_the_attempt_back(
    store: Store, clock: ManualClock, ending: Released | Snoozed
) -> None:
    job_id = await submit_one(store, a_job(max_retries=0))
    await register(store)
    for _ in range(3):
        lease = await claim_one(store)
        assert (lease.attempts, lease.crashes) == (1, 0)
        await end(store, lease, ending)
        assert (await the_job(store, job_id)).attempts == 0
        clock.advance(ms=500)
    assert (await the_job(store, job_id)).history == ()


async def test_a_crash_counts_as_an_attempt_and_as_a_crash(store: Store, clock: ManualClock) -> None:
    # R5.75
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Crashed("signal 11"))
    clock.advance(seconds=60)
    await end(store, await claim_one(store), Raised(BOOM))
    job = await the_job(store, job_id)
    assert (job.attempts, job.crashes) == (2, 1)
    assert [(attempt.reason, attempt.number) for attempt in job.history] == [("crash", 1), ("failed", 2)]


async def test_a_job_that_kills_its_workers_ends_as_a_dead_letter(store: Store, clock: ManualClock) -> None:
    # R2.57
    job_id = await submit_one(store, a_job(max_retries=100))
    await register(store, lease_ms=10**9)
    runs = 0
    while leases := await claim(store):
        runs += 1
        await end(store, leases[0], Crashed("signal 9"))
        clock.advance(seconds=60)
    job = await the_job(store, job_id)
    assert (runs, job.state, job.reason, job.crashes) == (3, State.DEAD_LETTER, "crash_limit", 3)


async def test_the_same_report_again_is_the_same_and_changes_nothing(store: Store, clock: ManualClock) -> None:
    endings: list[Ending] = [Returned(b"1"), Raised(FINAL), Stopped(), Raised(BOOM), Released(), Snoozed(5)]
    await register(store)
    for ending in endings:
        job_id = await submit_one(store)
        lease = await claim_one(store)
        assert await end(store, lease, ending) is ReportStatus.OK
        before = await the_job(store, job_id)
        totals = (await store.stats()).totals
        assert await end(store, lease, ending) is ReportStatus.DUPLICATE
        assert await the_job(store, job_id) == before
        assert (await store.stats()).totals == totals
        await store.cancel([job_id])


@pytest.mark.one_store  # A report without a token is that of a transient job, and counted as such elsewhere.
async def test_a_foreign_token_is_refused_and_changes_nothing(store: Store) -> None:
    # R5.57, R2.56
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    before = await the_job(store, job_id)
    assert await end(store, lease._replace(token=b"x" * 16)) is ReportStatus.STALE
    assert await end(store, lease._replace(token=b"")) is ReportStatus.STALE
    assert await the_job(store, job_id) == before
    assert await end(store, lease) is ReportStatus.OK


async def test_a_token_of_an_earlier_lease_is_refused(store: Store, clock: ManualClock) -> None:
    # R5.57, R2.56: the zombie's result is refused, the live run is undisturbed.
    job_id = await submit_one(store)
    await register(store, "zombie")
    old = await claim_one(store, "zombie")
    clock.advance(ms=LEASE_MS)
    await reap(store)
    clock.advance(seconds=1)
    await register(store, "w2")
    new = await claim_one(store, "w2")
    before = await the_job(store, job_id)
    for ending in (Returned(b"late"), Raised(FINAL), Released()):
        assert await end(store, old, ending) is ReportStatus.STALE
    assert await the_job(store, job_id) == before
    assert await end(store, new, Returned(b"new")) is ReportStatus.OK
    assert await end(store, old, Returned(b"late")) is ReportStatus.STALE
    assert (await the_job(store, job_id)).result == b"new"


async def test_a_token_of_another_job_is_refused(store: Store) -> None:
    # R5.57
    await submit(store, a_job(), a_job())
    await register(store)
    one = await claim_one(store)
    other = await claim_one(store)
    assert await end(store, one._replace(token=other.token)) is ReportStatus.STALE


async def test_a_report_on_a_job_that_was_retried_since_is_refused(store: Store) -> None:
    # R5.57
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await end(store, lease, Raised(FINAL))
    await store.retry([job_id])
    assert await end(store, lease, Returned(b"late")) is ReportStatus.STALE
    assert await end(store, lease, Raised(FINAL)) is ReportStatus.STALE
    assert await state_of(store, job_id) is State.QUEUED


async def test_a_report_on_an_unknown_job_is_lost(store: Store) -> None:
    await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    assert await end(store, lease._replace(job_id=an_id(), seq=10**9)) is ReportStatus.STALE


async def test_a_result_counts_though_the_lease_has_run_out_if_nobody_else_has_the_job(
    store: Store, clock: ManualClock
) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=10 * LEASE_MS)
    assert await end(store, lease) is ReportStatus.OK
    assert await state_of(store, job_id) is State.COMPLETED


async def test_a_refused_report_does_not_hold_up_the_others_of_its_batch(store: Store) -> None:
    await submit(store, a_job(), a_job(), a_job())
    await register(store)
    one, two, three = await claim(store)
    given = [judge(Returned(b"1"), lease, BUILT_IN) for lease in (one, two, three)]
    given[1] = given[1]._replace(token=b"stale")
    assert await report(store, *given) == [ReportStatus.OK, ReportStatus.STALE, ReportStatus.OK]
    assert [await state_of(store, lease.job_id) for lease in (one, two, three)] == [
        State.COMPLETED, State.EXECUTING, State.COMPLETED,
    ]  # fmt: skip


@pytest.mark.parametrize("ending", [Returned(b"late"), Stopped()])
async def test_a_job_asked_to_stop_may_still_end_by_itself(
    store: Store, clock: ManualClock, ending: Returned | Stopped
) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await store.cancel([job_id])
    assert await end(store, lease, ending) is ReportStatus.OK
    expected = State.COMPLETED if isinstance(ending, Returned) else State.CANCELLED
    job = await the_job(store, job_id)
    assert (job.state, job.cancel_requested_at) == (expected, clock())


async def test_progress_is_noted_under_the_right_token_only(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, lease.token, 0.25, "quarter")]))
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, lease.token, 0.5, None)]))
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, b"x" * 16, 0.9, "no")]))
    job = await the_job(store, job_id)
    assert (job.progress, job.note) == (0.5, None)


async def test_progress_stays_with_the_outcome_and_is_new_with_each_attempt(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, lease.token, 0.5, "half")]))
    await end(store, lease, Raised(BOOM, after_ms=0))
    assert (await the_job(store, job_id)).progress is None
    lease = await claim_one(store)
    job = await the_job(store, job_id)
    assert (job.progress, job.note) == (None, None)
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, lease.token, 1.0, "all\0of it")]))
    await end(store, lease)
    job = await the_job(store, job_id)
    assert (job.progress, job.note) == (1.0, "all\0of it")
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, lease.token, 0.1, "late")]))
    assert (await the_job(store, job_id)).progress == 1.0


async def test_what_went_wrong_before_is_history_once_a_job_runs_again_and_completes(store: Store) -> None:
    # R2.41
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM, after_ms=0))
    lease = await claim_one(store)
    job = await the_job(store, job_id)
    assert (job.error, job.reason) == (None, None)
    await end(store, lease)
    job = await the_job(store, job_id)
    assert (job.error, job.reason, len(job.history)) == (None, None, 1)


async def test_an_ended_job_stays_as_it_ended(store: Store) -> None:
    for state in (State.COMPLETED, State.FAILED, State.CANCELLED, State.DEAD_LETTER):
        job_id = await ended_job(store, state)
        before = await the_job(store, job_id)
        await store.cancel([job_id])
        assert await claim(store) == []
        assert await the_job(store, JobId(job_id)) == before


@pytest.mark.parametrize(
    "ending",
    [Raised(FINAL, partial=b"[1]"), Raised(BOOM, partial=b"[1]"), TimedOut(BOOM, b"[1]")],
    ids=["not retriable", "retriable", "timed out"],
)
async def test_a_failed_job_keeps_what_its_last_attempt_had_got(store: Store, ending: Ending) -> None:
    job_id = await submit_one(store, a_job(max_retries=0))
    await register(store)
    await end(store, await claim_one(store), ending)
    job = await the_job(store, job_id)
    assert (job.state.ended, job.result, job.result_error) == (True, b"[1]", None)
    assert job.error is not None
    await store.retry([job_id])
    again = await the_job(store, job_id)
    assert (again.state, again.result, again.error) == (State.QUEUED, None, None)


async def test_an_attempt_that_is_tried_again_keeps_nothing(store: Store) -> None:
    job_id = await submit_one(store, a_job(max_retries=1))
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM, after_ms=0, partial=b"[1]"))
    assert (await the_job(store, job_id)).result is None
    await end(store, await claim_one(store), Raised(BOOM))
    job = await the_job(store, job_id)
    assert (job.state, job.result) == (State.DEAD_LETTER, None)
