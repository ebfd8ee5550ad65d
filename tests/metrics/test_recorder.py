"""Counters of processes: each job counts once despite failures, the store sums them, and they never fall."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from headway.core.errors import JobError, StoreUnavailable
from headway.core.job import JobId, State
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Crashed, Ending, Raised, Released, Returned, Snoozed, TimedOut, judge
from headway.dispatch.job_source import FinishedRun, StoreJobSource
from headway.maintenance.recovery import end_worker
from headway.metrics import documents as tally_module
from headway.metrics import recorder as names
from headway.metrics.documents import (
    METRICS,
    RETIRED,
    STALE,
    MetricsCompactor,
    MetricsDocument,
    compact,
    encode,
    read_document,
    read_documents,
)
from headway.metrics.recorder import LENGTHS_MS, MetricsRecorder
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import JobQuery, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import BOOM, a_job, claim, register, submit

DONE = Returned(b"1")
BAD = Raised(JobError("ValueError", "no", retriable=False))


def a_lease(
    number: int = 1, *, lane: str = "low", waited_ms: int = 0, max_retries: int = 3, attempts: int = 1
) -> Lease:
    lease = Lease(
        JobId(str(number)), number, b"t", "t", b"", lane, None, None, 1, attempts, 0, max_retries, 1_000, 1_000, None,
        90_000,
    )  # fmt: skip
    return lease._replace(submitted_at=90_000 - waited_ms, eligible_at=90_000 - waited_ms)


def run(
    recorder: MetricsRecorder, lease: Lease, ending: Ending = DONE, seconds: float = 0.02, *, lost: bool = False
) -> None:
    """Record a run of a job and its report."""
    recorder.note([(lease, seconds)])
    recorder.reported([judge(ending, lease, BUILT_IN)], [(lease.job_id, ReportStatus.STALE)] if lost else [])


def test_attempts_are_counted_by_task_and_outcome() -> None:
    recorder = MetricsRecorder()
    first, second = a_lease(1)._replace(task="mail"), a_lease(2)._replace(task="a|b")
    run(recorder, first, seconds=0.5)
    run(recorder, first._replace(job_id=JobId("3")), seconds=0.25)
    run(recorder, second, BAD, seconds=1.0)
    run(recorder, second._replace(job_id=JobId("4")), Raised(BOOM), seconds=2.0)
    run(recorder, second._replace(job_id=JobId("5")), Snoozed(5), seconds=3.0)
    rows = recorder.counted().rows
    assert {key: row for key, row in rows.items() if key.startswith("tasks|")} == {
        "tasks|completed|mail": [2, 750.0],
        "tasks|failed|a|b": [1, 1_000.0],
        "tasks|retried|a|b": [1, 2_000.0],
        "tasks|released|a|b": [1, 3_000.0],
    }


def test_tasks_beyond_the_bound_are_counted_together() -> None:
    recorder = MetricsRecorder()
    for number in range(names.TASKS_MAX + 3):
        run(recorder, a_lease(number)._replace(task=f"task-{number}"))
    rows = {key: row for key, row in recorder.counted().rows.items() if key.startswith("tasks|")}
    assert len(rows) == names.TASKS_MAX + 1
    assert rows["tasks|completed|other"][0] == 3


async def test_what_is_retired_adds_up_rare_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "TASK_ROWS_MAX", 2)
    store = MemoryStore(clock=ManualClock())
    rows = {f"tasks|completed|a|{number}": [number, number * 10.0] for number in range(1, 5)}
    await store.write(METRICS, "p1", encode(MetricsDocument(rows=dict(rows))))
    await compact(store, ["p1"])
    assert (await read_documents(store)).rows == {
        "tasks|completed|a|4": [4, 40.0],
        "tasks|completed|a|3": [3, 30.0],
        "tasks|completed|other": [3, 30.0],
    }


def bucket(tally: MetricsDocument, key: str) -> dict[float, float]:
    """Return the counts in the buckets of a row, by their upper bounds in seconds."""
    ends = [*(bound / 1_000 for bound in LENGTHS_MS), float("inf")]
    return {end: count for end, count in zip(ends, tally.rows[key], strict=False) if count}


# ---------------------------------------------------------------------- counting


def test_a_wait_falls_into_the_bucket_whose_end_it_does_not_exceed() -> None:
    # R5.85
    recorder = MetricsRecorder()
    recorder.claimed([a_lease(waited_ms=waited_ms) for waited_ms in (0, 5, 6, 1_500_000, 99_999_999)])
    recorder.claimed([a_lease(lane="high", waited_ms=30)])
    counted = recorder.counted()
    assert bucket(counted, "waits|low") == {0.005: 2, 0.01: 1, 1_500: 1, float("inf"): 1}
    assert counted.rows["waits|low"][-1] == 5 + 6 + 1_500_000 + 99_999_999
    assert bucket(counted, "waits|high") == {0.05: 1}


def test_of_a_transient_job_nobody_knows_how_long_it_waited() -> None:
    recorder = MetricsRecorder()
    recorder.claimed([a_lease()._replace(eligible_at=0)])
    assert recorder.counted().rows == {}


def test_a_duration_goes_from_submission_to_the_end_and_a_run_is_one_attempt() -> None:
    # R5.87: end to end; the wait by the store's clock, the run by the worker's.
    recorder = MetricsRecorder()
    run(recorder, a_lease(waited_ms=1_000), seconds=0.2)
    run(recorder, a_lease(waited_ms=1_000), BAD, seconds=0.2)
    counted = recorder.counted()
    assert bucket(counted, "spans|completed|low") == bucket(counted, "spans|failed|low") == {2.5: 1}
    assert bucket(counted, "runs|completed|low") == bucket(counted, "runs|failed|low") == {0.25: 1}
    assert counted.rows["spans|completed|low"][-1] == pytest.approx(1_200)


@pytest.mark.parametrize(
    "ending, lease, key",
    [
        pytest.param(Raised(BOOM), a_lease(), "retries|failed|low", id="raised"),
        pytest.param(TimedOut(BOOM), a_lease(lane="high"), "retries|timeout|high", id="out of time"),
        pytest.param(Crashed("signal 9"), a_lease(), "retries|crash|low", id="crashed"),
        pytest.param(BAD, a_lease(), "failures|not_retriable", id="not retriable"),
        pytest.param(Raised(BOOM), a_lease(attempts=4), "failures|max_retries_exceeded", id="no retries left"),
        pytest.param(Crashed("x"), a_lease()._replace(crashes=2), "failures|crash_limit", id="crashed too often"),
        pytest.param(TimedOut(BOOM), a_lease()._replace(budget_ms=9), "failures|time_limit", id="past its rung"),
        pytest.param(Snoozed(5, "wait for it"), a_lease(), "releases|other", id="snoozed for a reason of its own"),
        pytest.param(Snoozed(5, "rate_limited"), a_lease(), "releases|rate_limited", id="rate limited"),
        pytest.param(Released("drained"), a_lease(), "releases|drained", id="drained"),
    ],
)
def test_what_went_wrong_is_counted_by_a_reason_of_a_fixed_list(ending: Ending, lease: Lease, key: str) -> None:
    # R5.88, R5.93
    recorder = MetricsRecorder()
    run(recorder, lease, ending)
    assert recorder.counted().counters == {key: 1}


def test_a_report_that_came_too_late_counts_for_nothing() -> None:
    recorder = MetricsRecorder()
    run(recorder, a_lease(), lost=True)
    run(recorder, a_lease(), Raised(BOOM), lost=True)
    assert recorder.counted() == MetricsDocument()


def test_log_lines_that_were_dropped_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # W18
    dropped = iter([3, 0, 4])
    monkeypatch.setattr(names, "take_dropped", lambda: next(dropped))
    recorder = MetricsRecorder()
    assert [recorder.counted().counters.get(names.LOG_DROPPED) for _ in range(3)] == [3, 3, 7]


def test_idle_reserved_slots_are_counted_in_slot_seconds() -> None:
    # R1.47
    recorder = MetricsRecorder()
    recorder.idle(0, now=5.0)
    recorder.idle(2, now=10.0)
    recorder.idle(1, now=13.0)
    recorder.idle(0, now=17.0)
    assert recorder.counted().counters == {names.RESERVED_IDLE: 2 * 3_000 + 4_000}


async def test_a_feed_counts_the_slots_it_must_leave_idle(clock: ManualClock) -> None:
    # R1.47
    store = MemoryStore(clock=clock)
    await register(store)
    recorder = MetricsRecorder()
    feed = StoreJobSource(store, CurrentPolicy(), "w1", (), recorder=recorder)
    await submit(store, *(a_job(lane="low") for _ in range(5)))
    for free, below in ((5, 4), (5, 4), (1, 0), (1, 0)):
        await feed.exchange([], [], free=free, free_below=below)
    before, after = (recorder.counted().counters[names.RESERVED_IDLE] for _ in range(2))
    assert before < after
    await store.cancel([job.job_id for job in await store.find(JobQuery(states=(State.QUEUED,)))])
    await feed.exchange([], [], free=1, free_below=0)
    before, after = (recorder.counted().counters[names.RESERVED_IDLE] for _ in range(2))
    assert before == after


async def test_a_feed_counts_waits_runs_and_round_trips(clock: ManualClock) -> None:
    # R5.85, R5.87
    store = MemoryStore(clock=clock)
    await register(store)
    recorder = MetricsRecorder()
    feed = StoreJobSource(store, CurrentPolicy(), "w1", (), recorder=recorder)
    await submit(store, *(a_job() for _ in range(3)))
    clock.advance(ms=700)
    leases: list[Lease] = []
    while not leases:
        leases = list((await feed.exchange([], [], free=5, free_below=4)).leases)
    await feed.exchange([FinishedRun(lease, DONE, 0.1) for lease in leases], [], free=5, free_below=4)
    counted = recorder.counted()
    assert bucket(counted, "waits|medium") == {1.0: 3}
    assert bucket(counted, "spans|completed|medium") == {1.0: 3}
    assert sum(counted.rows["exchanges|jobs"][:-1]) == 1
    assert recorder.noted == {}


async def test_a_claim_counts_once_its_jobs_had_a_turn_to_start(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    recorder = MetricsRecorder()
    feed = StoreJobSource(store, CurrentPolicy(), "w1", (), recorder=recorder)
    await submit(store, a_job(), a_job())
    while not (await feed.exchange([], [], free=1, free_below=1)).leases:
        pass
    for _ in range(2):
        await asyncio.sleep(0)
    assert sum(recorder.counted().rows["waits|medium"][:-1]) == 1
    assert sum(recorder.counted().rows["starts"][:-1]) == 1
    await feed.exchange([], [], free=1, free_below=1)
    await feed.close()  # Counts what is left, so that a worker that ends loses nothing.
    assert sum(recorder.counted().rows["waits|medium"][:-1]) == 2


async def test_the_jobs_of_a_dead_worker_count_where_they_are_returned(store: Store) -> None:
    # R5.88, R5.93
    await register(store)
    await submit(store, a_job(max_retries=0), a_job())
    await claim(store, free=2)
    recorder = MetricsRecorder()
    assert await end_worker(store, "w1", BUILT_IN, lambda lease: Crashed("gone"), recorder=recorder) == 2
    assert recorder.counted().counters == {"failures|max_retries_exceeded": 1, "retries|crash|medium": 1}


def test_counting_costs_next_to_nothing() -> None:
    # About one microsecond of a slow processor; the bound leaves room for a busy one.
    leases = [a_lease(number, waited_ms=number) for number in range(128)]
    reports = [judge(DONE, lease, BUILT_IN) for lease in leases]
    recorder = MetricsRecorder()

    def batch() -> float:
        began = time.process_time()
        recorder.claimed(leases)
        recorder.note([(lease, 0.003) for lease in leases])
        recorder.reported(reports, ())
        return time.process_time() - began

    assert min(batch() for _ in range(200)) / len(leases) < 4e-6


# ---------------------------------------------------------------------- publishing, summing, folding


async def published(store: Store, *counts: MetricsRecorder) -> None:
    for recorder in counts:
        await recorder.publish(store)


async def completed(store: Store) -> float:
    rows = (await read_documents(store)).rows
    return sum(sum(row[:-1]) for key, row in rows.items() if key.startswith("spans|completed"))


def many(recorder: MetricsRecorder, count: int) -> None:
    for number in range(count):
        run(recorder, a_lease(number))


async def test_the_sum_is_over_all_processes(store: Store) -> None:
    one, two = MetricsRecorder("one"), MetricsRecorder("two")
    many(one, 3)
    many(two, 4)
    run(two, a_lease(), Raised(BOOM))
    await published(store, one, two)
    many(one, 2)
    assert await completed(store) == 7
    await published(store, one)
    assert await completed(store) == 9
    assert (await read_documents(store)).counters == {"retries|failed|low": 1}


async def test_nothing_new_writes_nothing(store: Store) -> None:
    recorder = MetricsRecorder("one")
    await recorder.publish(store)
    many(recorder, 1)
    await published(store, recorder, recorder)
    recorder.exchanged(0.001, 0)  # Nor does an idle worker that looks at its store.
    await recorder.publish(store)
    assert [document.version for document in await store.read(METRICS)] == [1]


async def test_what_a_process_counted_stays_when_it_leaves(store: Store) -> None:
    one, two = MetricsRecorder("one"), MetricsRecorder("two")
    many(one, 3)
    many(two, 4)
    await published(store, two)
    await one.retire(store)
    assert [document.name for document in await store.read(METRICS)] == [RETIRED, "two"]
    assert await completed(store) == 7
    await two.retire(store)
    assert [document.name for document in await store.read(METRICS)] == [RETIRED]
    assert await completed(store) == 7


async def test_a_process_that_says_nothing_for_long_is_folded(store: Store, clock: ManualClock) -> None:
    recorder, now = MetricsRecorder("one"), 0.0
    many(recorder, 3)
    await recorder.publish(store)
    retirer = MetricsCompactor(store, lambda: now)
    await retirer()
    now += STALE - 1
    await retirer()
    assert [document.name for document in await store.read(METRICS)] == ["one"]
    now += 1
    await retirer()
    assert [document.name for document in await store.read(METRICS)] == [RETIRED]
    assert await completed(store) == 3


async def test_a_process_that_was_taken_for_gone_begins_another_document(store: Store) -> None:
    recorder = MetricsRecorder("one")
    many(recorder, 3)
    await recorder.publish(store)
    await compact(store, ["one"])
    many(recorder, 2)
    await recorder.publish(store)
    many(recorder, 1)
    await recorder.publish(store)
    assert [document.name for document in await store.read(METRICS)] == ["one.1", RETIRED]
    assert await completed(store) == 6
    await recorder.retire(store)
    many(recorder, 1)
    await recorder.publish(store)
    assert await completed(store) == 7


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_whoever_folds_may_die_anywhere_and_another_goes_on(clock: ManualClock, steps: int) -> None:
    store = FragileStore(clock)
    one, two = MetricsRecorder("one"), MetricsRecorder("two")
    many(one, 3)
    many(two, 4)
    await published(store, one, two)
    store.writes_left = steps - 1
    with pytest.raises(StoreUnavailable):
        await compact(store, ["one"])
    store.writes_left = None
    assert await completed(store) == 7
    many(one, 1)  # It lives.
    await one.publish(store)
    assert await completed(store) == 8
    await compact(store, ["one", "one.1", "two"])
    assert [document.name for document in await store.read(METRICS)] == [RETIRED]
    assert await completed(store) == 8


async def test_two_that_fold_the_same_document_count_it_once(clock: ManualClock) -> None:
    store = FragileStore(clock)
    recorder = MetricsRecorder("one")
    many(recorder, 3)
    await recorder.publish(store)

    async def meanwhile() -> None:
        store.before_write = None
        await compact(store, ["one"])

    for name in (RETIRED, "one"):
        store.before_write = (name, meanwhile)
        await compact(store, ["one"])
        assert await completed(store) == 3


@pytest.mark.parametrize("folded", [False, True])
async def test_a_lost_reply_changes_nothing(clock: ManualClock, folded: bool) -> None:
    store = FragileStore(clock)
    recorder = MetricsRecorder("one")
    many(recorder, 3)
    await recorder.publish(store)
    many(recorder, 1)
    store.lose_reply = True
    with pytest.raises(StoreUnavailable):
        await recorder.publish(store)
    assert await completed(store) == 4
    if folded:
        await compact(store, ["one"])
    many(recorder, 1)
    await recorder.publish(store)
    assert await completed(store) == 5


async def test_rows_of_another_release_with_other_buckets_are_left_out(store: Store) -> None:
    recorder = MetricsRecorder("one")
    many(recorder, 3)
    await recorder.publish(store)
    await store.write(METRICS, "zzz", encode(MetricsDocument(rows={"spans|completed|low": [1, 2]})))
    assert await completed(store) == 3


def test_a_document_is_small() -> None:
    recorder = MetricsRecorder()
    for lane in ("high", "medium", "low"):
        recorder.claimed([a_lease(lane=lane)])
        for ending in (DONE, BAD, Raised(BOOM), Snoozed(1), Released("drained")):
            run(recorder, a_lease(lane=lane), ending)
    body = encode(recorder.counted())
    assert len(body) < 5_000
    assert read_document(body) == recorder.counted()


class FragileStore(MemoryStore):
    """A store that fails before a write, loses the reply to one, or lets another process write first."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.writes_left: int | None = None
        self.lose_reply = False
        self.before_write: tuple[str, Callable[[], Awaitable[None]]] | None = None

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        if self.writes_left is not None:
            if not self.writes_left:
                raise StoreUnavailable("gone")
            self.writes_left -= 1
        if self.before_write is not None and self.before_write[0] == name:
            await self.before_write[1]()
        version = await super().write(kind, name, body, if_version=if_version)
        if self.lose_reply:
            self.lose_reply = False
            raise StoreUnavailable("no answer")
        return version
