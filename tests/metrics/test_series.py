"""Series by the minute and by the hour: any process may write them, and they survive restarts."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headway.core.job import State
from headway.core.lease import Lease, Report
from headway.metrics.documents import MetricsDocument
from headway.metrics.recorder import LENGTHS_MS, MetricsRecorder
from headway.metrics.series import (
    ALL,
    DAY_MS,
    HOUR_MS,
    LANES_MAX,
    LATEST,
    MINUTE_MS,
    SERIES,
    SeriesRow,
    SeriesStep,
    SeriesTotals,
    read_series,
    record_series,
    step_between,
    totals_of,
    wait_quantile,
)
from headway.stores.base import LaneStats, Stats, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, end, register, submit


class RecordedStore:
    """A store with running jobs, and a recorder that counts them as a worker does."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.metrics = MetricsRecorder("worker")

    async def run_jobs(self, count: int, lane: str = "medium", waits_ms: int = 0) -> None:
        await submit(self.store, *(a_job(lane=lane) for _ in range(count)))
        self.clock.advance(ms=waits_ms)
        leases = await claim(self.store, free=count)
        assert len(leases) == count
        self.metrics.claimed(leases)
        for lease in leases:
            self.metrics.note([(lease, 0.5)])
            await end(self.store, lease)
        self.metrics.reported([_done(lease) for lease in leases], [])
        await self.metrics.publish(self.store)

    async def sample(self) -> float | None:
        return await record_series(self.store)

    async def minutes(self, since_ms: int = HOUR_MS) -> list[SeriesStep]:
        now_at = self.clock()
        return await read_series(self.store, since_at=now_at - since_ms, step_ms=MINUTE_MS, now_at=now_at)


def _done(lease: Lease) -> Report:
    return Report(lease.job_id, lease.seq, lease.token, State.COMPLETED)


@pytest.fixture
async def plant(store: Store, clock: ManualClock) -> RecordedStore:
    clock.advance(ms=MINUTE_MS - clock() % MINUTE_MS)  # A minute begins.
    await register(store, slots=1_000, lease_ms=100 * DAY_MS)
    return RecordedStore(store, clock)


async def test_a_row_has_what_happened_in_its_minute(plant: RecordedStore, clock: ManualClock) -> None:
    began_at = clock()
    await plant.sample()
    await plant.run_jobs(3, waits_ms=2_000)
    await plant.run_jobs(2, "high")
    await submit(plant.store, a_job(lane="low"), a_job(lane="low", delay_ms=HOUR_MS))
    clock.advance(60)
    await plant.sample()
    [step] = await plant.minutes()
    assert (step.at, step.length_ms, step.slots) == (began_at, MINUTE_MS, 1_000)
    rows = {lane: (row.submitted, row.started, row.ended, row.waiting) for lane, row in step.lanes.items()}
    assert rows == {
        ALL: (7, 5, {"completed": 5}, 1),
        "medium": (3, 3, {"completed": 3}, 0),
        "high": (2, 2, {"completed": 2}, 0),
        "low": (2, 0, {}, 1),
    }
    assert wait_quantile(step.lanes["medium"].waits, 0.5) == pytest.approx(1.75)
    assert wait_quantile(step.lanes["low"].waits, 0.5) is None


async def test_many_processes_write_each_minute_once(plant: RecordedStore, clock: ManualClock) -> None:
    for _ in range(5):
        await asyncio.gather(*(record_series(plant.store) for _ in range(4)))
        await plant.run_jobs(2)
        clock.advance(60)
    await asyncio.gather(*(record_series(plant.store) for _ in range(4)))
    assert [step.lanes[ALL].submitted for step in await plant.minutes()] == [2] * 5


async def test_a_chore_comes_back_shortly_after_the_next_minute(plant: RecordedStore, clock: ManualClock) -> None:
    clock.advance(20)
    soon = await plant.sample()
    assert soon is not None
    assert 40 < soon < 45


async def test_a_step_that_no_process_sampled_is_longer(plant: RecordedStore, clock: ManualClock) -> None:
    await plant.sample()
    await plant.run_jobs(4)
    clock.advance(5 * 60)
    await plant.sample()
    [step] = await plant.minutes()
    assert (step.length_ms, step.lanes[ALL].submitted) == (5 * MINUTE_MS, 4)


async def test_rows_survive_a_writer_that_dies_between_its_writes(plant: RecordedStore, clock: ManualClock) -> None:
    class DyingStore:
        """A store that fails at the second write."""

        def __init__(self, store: Store) -> None:
            self._store, self.left = store, 1

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def write(self, *args: Any, **options: Any) -> Any:
            if not self.left:
                raise ConnectionError("the process dies")
            self.left -= 1
            return await self._store.write(*args, **options)

    await plant.sample()
    for count in (1, 2):
        await plant.run_jobs(count)
        clock.advance(60)
        await plant.sample()
    await plant.run_jobs(3)
    clock.advance(60)
    with pytest.raises(ConnectionError):
        await record_series(cast("Store", DyingStore(plant.store)))
    await plant.sample()
    assert [step.lanes[ALL].submitted for step in await plant.minutes()] == [1, 2, 3]


async def test_hours_are_the_sums_of_their_minutes_and_outlive_them(plant: RecordedStore, clock: ManualClock) -> None:
    clock.advance(ms=HOUR_MS - clock() % HOUR_MS)
    began_at = clock()
    await plant.sample()
    for _ in range(130):
        await plant.run_jobs(1, waits_ms=100)
        clock.advance(ms=MINUTE_MS - clock() % MINUTE_MS)
        await plant.sample()
    now_at = clock()
    hours = await read_series(plant.store, since_at=began_at, step_ms=HOUR_MS, now_at=now_at)
    assert [(step.at, step.lanes[ALL].submitted) for step in hours] == [
        (began_at, 60),
        (began_at + HOUR_MS, 60),
        (began_at + 2 * HOUR_MS, 10),
    ]
    assert sum(hours[0].lanes[ALL].waits.values()) == 60
    tens = await read_series(plant.store, since_at=began_at, step_ms=10 * MINUTE_MS, now_at=now_at)
    assert [step.lanes[ALL].submitted for step in tens] == [10] * 13

    clock.advance(ms=3 * DAY_MS)
    for _ in range(3):  # The row of the gap, the row after it, and then the documents that are too old go.
        await plant.sample()
        clock.advance(60)
    names = {document.name for document in await plant.store.read(SERIES)}
    assert {name[0] for name in names - {LATEST}} == {"m", "h"}
    assert not [name for name in names if name.startswith("m.") and int(name[2:]) <= began_at]
    hours = await read_series(plant.store, since_at=began_at, step_ms=HOUR_MS, now_at=clock())
    assert [step.lanes[ALL].submitted for step in hours][:2] == [60, 60]


def test_a_job_cancelled_while_it_waited_is_submitted_in_some_lane() -> None:
    # Of two lanes, low had ten jobs cancelled in its queue. The lanes add up to what the store counted.
    before = SeriesTotals(0, {"submitted": 0, "claimed": 0, "cancelled": 0}, live={"high": 0, "low": 0})
    stats = a_stats({"high": LaneStats(waiting=5), "low": LaneStats(waiting=5)}, submitted=20, cancelled=10)
    step = step_between(before, totals_of(stats, MetricsDocument(), MINUTE_MS), stats)
    assert step.lanes[ALL].submitted == 20
    assert step.lanes["high"].submitted + step.lanes["low"].submitted == 20
    assert step.lanes["high"].ended["cancelled"] + step.lanes["low"].ended["cancelled"] == 10


def test_counters_that_fall_count_as_nothing() -> None:
    before = SeriesTotals(0, {"submitted": 50, "claimed": 9}, waits={"high": [5] * 22}, live={"high": 7})
    stats = a_stats({"high": LaneStats()})
    step = step_between(before, totals_of(stats, MetricsDocument(), MINUTE_MS), stats)
    assert (step.lanes[ALL].submitted, step.lanes["high"].submitted, step.lanes["high"].started) == (0, 0, 0)


def test_further_lanes_are_counted_as_one() -> None:
    lanes = {f"lane{number:02}": LaneStats(waiting=100 - number) for number in range(LANES_MAX + 5)}
    stats = a_stats(lanes, submitted=sum(lane.waiting for lane in lanes.values()))
    step = step_between(SeriesTotals(), totals_of(stats, MetricsDocument(), MINUTE_MS), stats)
    assert len(step.lanes) == LANES_MAX + 2  # And all of them together, and the rest.
    assert step.lanes["other"].waiting == sum(100 - number for number in range(LANES_MAX, LANES_MAX + 5))


def test_quantiles_lie_in_their_buckets() -> None:
    waits = {0: 50, LENGTHS_MS.index(1_000): 50}
    assert wait_quantile(waits, 0.25) == pytest.approx(0.0025, abs=0.001)
    assert 0.5 < (wait_quantile(waits, 0.9) or 0) <= 1.0
    assert wait_quantile({len(LENGTHS_MS): 3}, 0.9) == LENGTHS_MS[-1] / 1_000
    assert wait_quantile({}, 0.5) is None


def test_rows_add_up_and_keep_the_latest_gauges() -> None:
    row = SeriesRow(1, 2, {"completed": 2}, {3: 1}, waiting=9, running=4)
    row.add(SeriesRow(5, 1, {"completed": 1, "failed": 1}, {3: 2, 4: 1}, waiting=1, running=0))
    assert row == SeriesRow(6, 3, {"completed": 3, "failed": 1}, {3: 3, 4: 1}, waiting=1, running=0)


def a_stats(lanes: dict[str, LaneStats], **totals: int) -> Stats:
    return Stats(0, lanes, (), totals, {}, {})
