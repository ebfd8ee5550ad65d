"""Events that a watcher derives from two reads of a job."""

from __future__ import annotations

from dataclasses import replace

from headway.core.errors import JobError
from headway.core.event import Event, events_between
from headway.core.job import Attempt, JobId, JobRecord, State

BOOM = JobError("ValueError", "no")
NOW = 99


def a_job(state: State = State.QUEUED, **changes: object) -> JobRecord:
    job = JobRecord(
        job_id=JobId("j"), seq=1, task="export", payload=b"", state=state, lane="low", needs=(), rung=None, tenant=None,
        max_retries=3, timeout_ms=1, retry=None, attempts=0, crashes=0, epoch=0, submitted_at=10, due_at=None,
        eligible_at=10, started_at=None, finished_at=None, expires_at=None, cancel_requested_at=None, worker_id=None,
        progress=None, note=None, result=None, result_error=None, error=None, reason=None, idempotency_key=None,
        unique_key=None, trace_id=None, history=(),
    )  # fmt: skip
    return replace(job, **changes)  # type: ignore[arg-type]


def an_attempt(epoch: int, *, number: int | None = None, started_at: int = 20, ended_at: int = 30) -> Attempt:
    return Attempt(number or epoch, epoch, "w1", started_at, ended_at, "failed", BOOM)


QUEUED = a_job()
RUNNING = a_job(State.EXECUTING, epoch=1, attempts=1, started_at=20, worker_id="w1")
FAILED_ONCE = a_job(epoch=1, attempts=1, history=(an_attempt(1),), error=BOOM, reason="failed")
COMPLETED = a_job(State.COMPLETED, epoch=1, attempts=1, started_at=20, worker_id="w1", finished_at=40)

STARTED = Event("started", 20, "j", {"attempt": 1, "worker": "w1"})
RETRIED = Event("retried", 30, "j", {"attempt": 1, "reason": "failed", "error": "ValueError", "message": "no"})


def kinds(before: JobRecord | None, after: JobRecord) -> list[str]:
    return [event.kind for event in events_between(before, after, NOW)]


def test_the_first_look_tells_that_a_job_was_queued() -> None:
    assert list(events_between(None, QUEUED, NOW)) == [Event("queued", 10, "j", {"lane": "low", "task": "export"})]


def test_nothing_is_told_if_nothing_changed() -> None:
    for job in (QUEUED, RUNNING, FAILED_ONCE, COMPLETED):
        assert kinds(job, job) == []


def test_a_start_is_told_once() -> None:
    assert list(events_between(QUEUED, RUNNING, NOW)) == [STARTED]
    assert kinds(RUNNING, replace(RUNNING, cancel_requested_at=25)) == []


def test_a_release_is_told_before_the_start() -> None:
    held = a_job(held=True, eligible_at=None)
    released = Event("released", 15, "j", {"lane": "low", "task": "export"})
    assert list(events_between(held, a_job(eligible_at=15), NOW)) == [released]
    events = list(events_between(held, replace(RUNNING, eligible_at=15), NOW))
    assert events == [released, STARTED]
    assert (0, 0) < events[0].place < events[1].place
    delayed = a_job(eligible_at=None, due_at=500)
    assert list(events_between(held, delayed, NOW)) == [replace(released, at=NOW)]


def test_a_held_job_that_is_cancelled_was_not_released() -> None:
    held = a_job(held=True, eligible_at=None)
    ended = a_job(State.CANCELLED, finished_at=30, reason="upstream x", eligible_at=None)
    assert kinds(held, ended) == ["finished"]
    assert kinds(None, held) == ["queued"]
    assert kinds(ended, replace(held, finished_at=None)) == []


def test_a_job_that_is_held_again_is_released_after_its_last_end() -> None:
    again = a_job(held=True, eligible_at=None, epoch=1)
    [event] = events_between(again, replace(again, held=False, eligible_at=50), NOW)
    assert (1, 4, 40) < event.place < (2, 1)


def test_progress_is_told_when_it_changes() -> None:
    half = replace(RUNNING, progress=0.5, note="half")
    [event] = events_between(RUNNING, half, NOW)
    assert (event.kind, event.at, event.data) == ("progress", NOW, {"fraction": 0.5, "note": "half"})
    assert kinds(half, half) == []
    assert kinds(half, replace(half, note="still half")) == ["progress"]


def test_a_failed_attempt_is_told_as_retried() -> None:
    assert list(events_between(RUNNING, FAILED_ONCE, NOW)) == [RETRIED]


def test_attempts_between_two_looks_are_not_missed() -> None:
    assert list(events_between(QUEUED, FAILED_ONCE, NOW)) == [STARTED, RETRIED]
    again = replace(RUNNING, epoch=3, attempts=3, started_at=60, history=(an_attempt(1), an_attempt(2)))
    assert kinds(QUEUED, again) == ["started", "retried", "started", "retried", "started"]
    assert kinds(FAILED_ONCE, again) == ["started", "retried", "started"]
    assert kinds(RUNNING, again) == ["retried", "started", "retried", "started"]


def test_an_ending_is_told_with_its_status() -> None:
    assert list(events_between(RUNNING, COMPLETED, NOW)) == [
        Event("finished", 40, "j", {"status": "completed", "reason": None})
    ]


def test_a_whole_life_in_one_look_is_told_in_order() -> None:
    assert kinds(None, COMPLETED) == ["queued", "started", "finished"]
    late = replace(COMPLETED, epoch=2, attempts=2, started_at=35, history=(an_attempt(1),))
    assert kinds(None, late) == ["queued", "started", "retried", "started", "finished"]


def test_the_attempt_that_ended_a_job_is_told_as_its_end_alone() -> None:
    dead = a_job(
        State.DEAD_LETTER, epoch=1, attempts=1, started_at=20, worker_id="w1", finished_at=30, error=BOOM,
        reason="max_retries_exceeded", history=(an_attempt(1),),
    )  # fmt: skip
    assert list(events_between(RUNNING, dead, NOW)) == [
        Event(
            "finished",
            30,
            "j",
            {"status": "dead_letter", "reason": "max_retries_exceeded", "error": "ValueError", "message": "no"},
        )
    ]
    assert kinds(None, dead) == ["queued", "started", "finished"]


def test_a_job_cancelled_in_the_queue_never_started() -> None:
    cancelled = a_job(State.CANCELLED, finished_at=15, reason="expired")
    assert list(events_between(QUEUED, cancelled, NOW)) == [
        Event("finished", 15, "j", {"status": "cancelled", "reason": "expired"})
    ]


def test_a_job_that_failed_and_was_then_cancelled_in_the_queue_tells_both() -> None:
    cancelled = replace(FAILED_ONCE, state=State.CANCELLED, finished_at=50, reason="cancelled")
    assert kinds(RUNNING, cancelled) == ["retried", "finished"]


def test_a_claim_handed_back_unharmed_is_told_as_a_start_if_it_was_seen() -> None:
    released = a_job(epoch=1)
    assert kinds(RUNNING, released) == []
    assert kinds(released, replace(RUNNING, epoch=2)) == ["started"]


def test_a_retry_by_an_operator_is_told_by_what_follows() -> None:
    again = a_job(epoch=1)
    assert kinds(COMPLETED, again) == []
    done = replace(COMPLETED, epoch=2)
    assert kinds(again, done) == ["started", "finished"]


def test_a_job_that_ended_twice_between_two_looks_tells_of_the_end_that_stands() -> None:
    failed = replace(COMPLETED, state=State.FAILED)
    assert kinds(failed, replace(COMPLETED, epoch=2, started_at=60, finished_at=70)) == ["started", "finished"]
