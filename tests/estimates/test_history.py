"""The histories that workers learn for estimates and publish."""

from __future__ import annotations

import pytest

from headway.core.distributions import TASK_JOBS_MIN, Arrivals, Lengths, Model, bucket
from headway.core.job import JobId
from headway.core.lease import Lease
from headway.estimates.costs import TaskCosts
from headway.estimates.history import (
    AGED_EVERY,
    HOUR_MS,
    LANE_JOBS,
    LEARNED,
    PENDING_TENANTS_MAX,
    PUBLISH_EVERY,
    PUBLISH_SOON,
    READ_EVERY,
    TASK_JOBS,
    TASKS_MAX,
    TENANTS_MAX,
    WINDOW_MS,
    ArrivalWindow,
    DurationHistory,
    HistoryReader,
    LaneHistory,
    TaskHistory,
    TaskRuns,
    learn,
    read_learned,
)
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, register, submit

BEGINS_AT = 1_000_000 * WINDOW_MS


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


class SecondsClock:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def a_lease(
    task: str = "t", *, lane: str = "medium", tenant: str | None = None, after_s: float = 0.0, transient: bool = False
) -> Lease:
    at = BEGINS_AT + int(1_000 * after_s)
    lease = Lease(JobId("j"), 1, b"", task, b"", lane, tenant, None, 1, 1, 0, 0, 1, 1, None, at)
    return lease if transient else lease._replace(eligible_at=at)


async def told(store: MemoryStore, lessons: DurationHistory, now_s: float = 0.0) -> Model:
    await lessons.publish(store)
    return Model(await read_learned(store, BEGINS_AT + int(1_000 * now_s)))


async def test_lengths_are_known_by_task_and_by_lane(store: MemoryStore) -> None:
    lessons = DurationHistory(SecondsClock())
    for _ in range(90):
        lessons.note([(a_lease("short"), 1.0)])
    for _ in range(30):
        lessons.note([(a_lease("long"), 20.0)])
    known = await told(store, lessons)
    short, lane = known.task("short", "medium"), known.lane("medium")
    assert short is not None
    assert lane is not None
    assert short.mean == pytest.approx(1.0, rel=0.15)  # Few jobs leave room for longer ones.
    assert lane.phases[0].part == pytest.approx(0.75, abs=0.02)
    assert known.lane("low") is None


async def test_what_several_workers_saw_is_added_up(store: MemoryStore) -> None:
    first, second = DurationHistory(SecondsClock()), DurationHistory(SecondsClock())
    for _ in range(int(TASK_JOBS_MIN) - 1):
        first.note([(a_lease(), 2.0)])
        first.note([(a_lease("u"), 20.0)])
    known = await told(store, first)
    assert known.task("t", "medium") is known.lane("medium")
    second.note([(a_lease(), 2.0)])
    known = await told(store, second)
    assert known.task("t", "medium") is known.own("t")


async def versions(store: MemoryStore, lessons: DurationHistory) -> int:
    await lessons.publish(store)
    return sum(document.version for document in await store.read(LEARNED))


async def test_it_is_published_soon_while_little_is_known_and_seldom_later(store: MemoryStore) -> None:
    beats = SecondsClock()
    lessons = DurationHistory(beats)

    async def after(seconds: float, *, runs: int = 1) -> int:
        lessons.note([(a_lease(), 2.0)] * runs)
        beats.seconds += seconds
        return await versions(store, lessons)

    assert await after(0.0) == 1
    assert await after(0.0) == 1
    assert await after(PUBLISH_SOON) == 2
    assert await after(PUBLISH_SOON, runs=1_000) == 3
    assert await after(PUBLISH_SOON) == 3
    assert await after(PUBLISH_EVERY / 2) == 3
    assert await after(PUBLISH_EVERY) == 4


async def test_without_finished_jobs_nothing_is_due(store: MemoryStore) -> None:
    wakes: list[int] = []
    lessons = DurationHistory(SecondsClock(), lambda: wakes.append(1))
    assert lessons.due_in == float("inf")
    lessons.note([(a_lease(), 2.0)] * 1_000)
    assert (lessons.due_in, len(wakes)) == (0.0, 1)  # One wake-up, however many jobs end.
    await lessons.publish(store)
    assert lessons.due_in == float("inf")


async def test_a_new_task_and_a_strong_change_are_published_within_a_second(store: MemoryStore) -> None:
    beats = SecondsClock()
    lessons = DurationHistory(beats)
    lessons.note([(a_lease(), 2.0)] * 1_000)
    await lessons.publish(store)
    lessons.note([(a_lease(), 2.1)])
    assert lessons.due_in > PUBLISH_EVERY / 2
    lessons.note([(a_lease("new"), 2.0)])
    assert lessons.due_in <= PUBLISH_SOON
    beats.seconds += PUBLISH_SOON
    await lessons.publish(store)
    for after in (PUBLISH_SOON, 2 * PUBLISH_SOON, 4 * PUBLISH_SOON):  # One job now and then is no change.
        lessons.note([(a_lease(), 0.2)])
        assert lessons.due_in == pytest.approx(after)
        beats.seconds += after
        await lessons.publish(store)


async def test_jobs_that_end_while_others_are_published_are_published_next(store: MemoryStore) -> None:
    beats = SecondsClock()
    lessons = DurationHistory(beats)

    class Busy(MemoryStore):
        async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
            lessons.note([(a_lease(), 2.0)] * 5)
            return await super().write(kind, name, body, if_version=if_version)

    busy = Busy(clock=ManualClock())
    lessons.note([(a_lease(), 2.0)] * 5)
    await lessons.publish(busy)
    beats.seconds += PUBLISH_EVERY
    await lessons.publish(busy)
    [lengths] = (await read_learned(busy, 0)).lengths["medium"].values()
    assert sum(lengths.values()) == 10


def test_what_a_task_took_before_a_strong_change_soon_counts_little() -> None:
    history = TaskHistory()
    history.learn(TaskRuns({bucket(5.0): 400}, 2_000.0))
    history.learn(TaskRuns({bucket(0.2): 20}, 4.0))
    assert history.count == pytest.approx(21)
    assert history.seconds / history.count < 0.5
    history.learn(TaskRuns({bucket(5.0): 1}, 5.0))  # One run shows no change.
    assert history.count == pytest.approx(22)


def test_the_mean_of_equal_run_times_is_exact() -> None:
    # A bucket knows a run time only to within a tenth.
    for seconds in (0.18, 0.2, 0.2101, 0.25, 0.297):
        notes = LaneHistory()
        for _ in range(30):  # More than are kept, so that the oldest fade.
            learn(notes, {"t": TaskRuns({bucket(seconds): 100}, 100 * seconds)}, {}, 0)
        task = notes.tasks["t"]
        assert task.seconds / task.count == pytest.approx(seconds, rel=0.001)


async def test_a_document_of_an_older_release_has_no_sum_and_is_read(store: MemoryStore) -> None:
    await store.write(LEARNED, "medium", b'{"tasks":{"t":[100.0,{"4":100.0}]},"since_at":1}')
    known = Model(await read_learned(store, 0)).lane("medium")
    assert known is not None
    assert known.mean == pytest.approx(2.2, rel=0.05)
    lessons = DurationHistory(SecondsClock())
    lessons.note([(a_lease(), 2.0)] * 100)
    known = (await told(store, lessons)).lane("medium")
    assert known is not None
    assert known.mean == pytest.approx(2.1, rel=0.05)


async def test_nothing_is_lost_while_others_write(store: MemoryStore) -> None:
    class Contended(MemoryStore):
        async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
            return None

    beats = SecondsClock()
    lessons = DurationHistory(beats)
    for _ in range(20):
        lessons.note([(a_lease(), 2.0)])
    await lessons.publish(Contended(clock=ManualClock()))
    beats.seconds += PUBLISH_EVERY
    assert (await told(store, lessons)).task("t", "medium") is not None


def test_the_past_fades_and_rare_things_are_dropped() -> None:
    notes = LaneHistory()
    for _ in range(20):
        learn(notes, {"t": TaskRuns({0: 1_000}, 1_090.0)}, {}, 0)
    assert sum(notes.tasks["t"].lengths.values()) == pytest.approx(TASK_JOBS)
    assert notes.tasks["t"].share == LANE_JOBS
    learn(notes, {"t": TaskRuns({10: 1_000}, 6_100.0)}, {}, 0)
    assert Lengths(notes.tasks["t"].lengths).mean > 3
    learn(notes, {f"t{number}": TaskRuns({0: 1}, 1.0) for number in range(300)}, {}, 0)
    assert len(notes.tasks) == TASKS_MAX
    assert "t" in notes.tasks
    learn(notes, {}, {f"n{number}": ArrivalWindow(1, 1, 1, 5, 5, 1) for number in range(300)}, 1)
    assert len(notes.tenants) == TENANTS_MAX


def test_tenants_noted_between_two_publications_are_bounded() -> None:
    lessons = DurationHistory(SecondsClock())
    for number in range(PENDING_TENANTS_MAX + 10):
        lessons.note([(a_lease(tenant=f"n{number}"), 1.0)])
    assert len(lessons._came) == PENDING_TENANTS_MAX


# ---------------------------------------------------------------------- arrivals


async def test_what_comes_again_and_again_is_a_rate(store: MemoryStore) -> None:
    beats = SecondsClock()
    lessons = DurationHistory(beats)
    for number in range(1_800):
        beats.seconds = 2.0 * number
        lessons.note([(a_lease(tenant="acme", after_s=2 * number), 1.0)])
        await lessons.publish(store)
    coming = (await told(store, lessons, 3_600)).learned.arrivals["medium"]["acme"]
    assert coming.steady
    assert coming.rate == pytest.approx(0.5, rel=0.05)


async def test_what_comes_all_at_once_now_and_then_is_a_burst(store: MemoryStore) -> None:
    beats = SecondsClock()
    lessons = DurationHistory(beats)
    for burst in range(12):
        for number in range(200):
            lessons.note([(a_lease(tenant="bulk", after_s=600 * burst + number / 20), 1.0)])
        beats.seconds += PUBLISH_EVERY
        await lessons.publish(store)
    coming = Model(await read_learned(store, BEGINS_AT + 6_600_000)).learned.arrivals["medium"]["bulk"]
    assert not coming.steady
    assert coming.size == pytest.approx(200, rel=0.02)
    assert 1 / coming.times == pytest.approx(600, rel=0.25)


@pytest.mark.parametrize(
    "minutes, least, most",
    [
        pytest.param([10] * 12, 0.0, 0.2, id="every ten minutes"),
        pytest.param([2, 30, 3, 25, 2, 40, 2, 3, 30, 2, 2, 9], 0.6, 1.0, id="at random moments"),
        pytest.param([10], 0.5, 1.0, id="too few to say"),
    ],
)
async def test_how_regular_bursts_are_is_learned(
    store: MemoryStore, minutes: list[int], least: float, most: float
) -> None:  # fmt: skip
    beats = SecondsClock()
    lessons, after_s = DurationHistory(beats), 0.0
    for gap in [0, *minutes]:
        after_s += 60 * gap
        lessons.note([(a_lease(tenant="bulk", after_s=after_s), 1.0)] * 200)
        beats.seconds += PUBLISH_EVERY
        await lessons.publish(store)
    coming = Model(await read_learned(store, BEGINS_AT + int(1_000 * after_s))).learned.arrivals["medium"]["bulk"]
    assert not coming.steady
    assert least <= coming.irregular <= most


async def test_a_burst_that_several_workers_served_is_one(store: MemoryStore) -> None:
    workers = [DurationHistory(SecondsClock()) for _ in range(4)]
    for number in range(200):
        workers[number % 4].note([(a_lease(tenant="bulk", after_s=number / 20), 1.0)])
    for lessons in workers:
        await lessons.publish(store)
    coming = Model(await read_learned(store, BEGINS_AT + int(HOUR_MS))).learned.arrivals["medium"]["bulk"]
    assert not coming.steady
    assert coming.size == pytest.approx(200, rel=0.01)


async def test_how_many_come_at_once_is_learned(store: MemoryStore) -> None:
    lessons = DurationHistory(SecondsClock())
    for minute in range(30):
        for number in range(40):
            lessons.note([(a_lease(tenant="batches", after_s=60 * minute), 1.0)])
            lessons.note([(a_lease(tenant="singles", after_s=60 * minute + 1.5 * number), 1.0)])
    arrivals = (await told(store, lessons, 1_800)).learned.arrivals["medium"]
    assert arrivals["batches"].size == pytest.approx(40, rel=0.05)
    assert arrivals["singles"].size == 1
    assert arrivals["batches"].rate == pytest.approx(arrivals["singles"].rate, rel=0.05)


async def test_jobs_that_come_at_once_and_end_later_are_a_batch_however_often_is_published(store: MemoryStore) -> None:
    beats = SecondsClock()
    lessons = DurationHistory(beats)
    for minute in range(30):
        for _ in range(8):  # Five of forty end, then a publication follows.
            lessons.note([(a_lease(tenant="batches", after_s=60 * minute), 1.0)] * 5)
            beats.seconds += PUBLISH_EVERY
            await lessons.publish(store)
    coming = (await told(store, lessons, 1_800)).learned.arrivals["medium"]["batches"]
    assert coming.size == pytest.approx(40, rel=0.05)


async def test_many_tenants_that_come_seldom_are_a_rate_together(store: MemoryStore) -> None:
    lessons = DurationHistory(SecondsClock())
    for number in range(50):
        lessons.note([(a_lease(tenant=f"n{number}", after_s=60 * number), 1.0)])
    arrivals = (await told(store, lessons, 3_600)).arrivals("medium")
    assert not arrivals.bursts
    assert arrivals.rate > 0


async def test_transient_jobs_have_lengths_and_nothing_else(store: MemoryStore) -> None:
    lessons = DurationHistory(SecondsClock())
    for _ in range(20):
        lessons.note([(a_lease(transient=True), 1.0)])
    known = await told(store, lessons)
    assert known.lane("medium") is not None
    assert known.learned.arrivals == {"medium": {}}


def test_what_has_not_come_for_long_comes_less_often() -> None:
    notes = LaneHistory(since_at=BEGINS_AT)
    learn(notes, {}, {"acme": ArrivalWindow(50, 10, 1, 1, 10, 50)}, BEGINS_AT + 600_000)
    acme = notes.tenants["acme"]
    soon, later = (acme.coming(BEGINS_AT + after, BEGINS_AT) for after in (600_000, 10 * 3_600_000))
    assert later.rate < soon.rate / 100
    assert isinstance(later, Arrivals)


# ---------------------------------------------------------------------- on the way


async def test_a_worker_learns_from_the_jobs_it_ends(store: MemoryStore) -> None:
    await register(store, slots=20)
    await submit(store, *(a_job(tenant="acme") for _ in range(12)))
    durations = TaskCosts()
    durations.ended([(lease, 3.0) for lease in await claim(store, free=12)])
    await durations.publish(store)
    known = Model(await read_learned(store, (await store.snapshot()).now_at))
    lengths = known.lane("medium")
    assert lengths is not None
    assert lengths.mean == pytest.approx(3.0, rel=0.25)  # Twelve jobs leave more room than ninety.
    assert list(known.learned.arrivals["medium"]) == ["acme"]


async def test_a_process_that_estimates_reads_twice_a_second_and_decodes_what_has_changed(store: MemoryStore) -> None:
    beats = SecondsClock()
    lookup, lessons = HistoryReader(beats), DurationHistory(SecondsClock())
    nothing = await lookup.known(store, 0)
    lessons.note([(a_lease(), 1.0)] * 20)
    await lessons.publish(store)
    assert await lookup.known(store, 0) is nothing
    beats.seconds += READ_EVERY + 0.1
    learned = await lookup.known(store, 0)
    assert learned.lane("medium") is not None
    beats.seconds += READ_EVERY + 0.1
    assert await lookup.known(store, 0) is learned  # It is not built again.
    beats.seconds += AGED_EVERY
    assert await lookup.known(store, 0) is not learned  # Arrivals have aged.
