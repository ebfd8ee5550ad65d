"""Chores: they may run twice, and tolerate clocks that disagree."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import pytest

from headway.core.job import ClassKey
from headway.core.snapshot import Snapshot
from headway.maintenance.clock_jumps import ClockJumpDetector
from headway.maintenance.cron import CronSubmitter
from headway.maintenance.pruner import Pruner
from headway.maintenance.reaper import Reaper
from headway.maintenance.standard import standard_chores
from headway.maintenance.wait_sampling import sample_waits
from headway.metrics.recorder import MetricsRecorder
from headway.policy_store.catalogue import CronDocument, publish_crons, read_crons
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import JobQuery, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import LEASE_MS, a_job, beat, claim, register


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def a_cron(expression: str, **changes: str | None) -> CronDocument:
    values = {"tz": "UTC", "catch_up": "skip", "overlap": "allow", **changes}
    return CronDocument(
        task="sweep", expression=expression, lane="low", max_retries=1, timeout_ms=1_000, payload=b"\x01{}",
        **values,  # type: ignore[arg-type]
    )  # fmt: skip


async def ticks(store: Store) -> list[str]:
    jobs = await store.find(JobQuery(limit=500))
    return sorted(str(job.idempotency_key).rpartition(":")[2] for job in jobs)


async def publish(store: MemoryStore, cron: CronDocument, now_at: int) -> None:
    await publish_crons(store, [cron], {"sweep"}, now_at)


async def test_a_tick_makes_one_job_however_many_tickers_look() -> None:
    # T5, I12
    clock = ManualClock(start_at=at("2026-03-01T12:00:30"))
    store = MemoryStore(clock=clock)
    await publish(store, a_cron("* * * * *"), clock())
    tickers = [CronSubmitter(store, lambda task: True) for _ in range(5)]
    for _ in range(100):
        clock.advance(60)
        for ticker in tickers:
            await ticker()
    found = await ticks(store)
    assert len(found) == len(set(found)) == 100
    assert found[0] == str(at("2026-03-01T12:01:00"))


async def test_a_tick_is_not_lost_when_its_marking_is() -> None:
    clock = ManualClock(start_at=at("2026-03-01T12:00:30"))
    store = MemoryStore(clock=clock)
    await publish(store, a_cron("* * * * *"), clock())
    ((before, version),) = await read_crons(store)
    clock.advance(40)
    await CronSubmitter(store, lambda task: True)()
    # As if the process had died between the submit and the mark:
    await store.write("cron", "sweep", None)
    await publish(store, a_cron("* * * * *"), before.ticked_at)
    await CronSubmitter(store, lambda task: True)()
    assert len(await ticks(store)) == 1
    assert version == 1


@pytest.mark.parametrize("catch_up, expected", [("skip", 0), ("last", 1), ("all", 10)])
async def test_ticks_missed_while_nobody_worked(catch_up: str, expected: int) -> None:
    # T6
    clock = ManualClock(start_at=at("2026-03-01T12:00:30"))
    store = MemoryStore(clock=clock)
    await publish(store, a_cron("0 * * * *", catch_up=catch_up), clock())
    clock.advance(10 * 3_600)
    clock.advance(1_800)
    await CronSubmitter(store, lambda task: True)()
    assert len(await ticks(store)) == expected


async def test_a_tick_is_skipped_while_the_job_before_is_live() -> None:
    clock = ManualClock(start_at=at("2026-03-01T12:00:30"))
    store = MemoryStore(clock=clock)
    await publish(store, a_cron("* * * * *", overlap="skip", unique_key="cron:sweep"), clock())
    ticker = CronSubmitter(store, lambda task: True)
    for _ in range(3):
        clock.advance(60)
        await ticker()
    assert len(await ticks(store)) == 1


async def test_a_cron_of_a_task_nobody_here_knows_is_left_to_others() -> None:
    clock = ManualClock(start_at=at("2026-03-01T12:00:30"))
    store = MemoryStore(clock=clock)
    await publish(store, a_cron("* * * * *"), clock())
    clock.advance(60)
    await CronSubmitter(store, lambda task: False)()
    assert await ticks(store) == []


async def test_a_cron_whose_jobs_the_store_refuses_holds_back_no_other() -> None:
    clock = ManualClock(start_at=at("2026-03-01T12:00:30"))
    store = MemoryStore(clock=clock)
    refused = msgspec.structs.replace(a_cron("* * * * *"), task="broken", tenant="x" * 5_000)
    await publish_crons(store, [refused, a_cron("* * * * *")], {"broken", "sweep"}, clock())
    ticker = CronSubmitter(store, lambda task: True)
    for _ in range(3):
        clock.advance(60)
        await ticker()
    assert [job.task for job in await store.find(JobQuery())] == ["sweep"] * 3


async def test_a_changed_cron_keeps_its_place_and_a_removed_one_goes() -> None:
    store = MemoryStore(clock=ManualClock())
    await publish(store, a_cron("* * * * *"), 1_000)
    await publish(store, a_cron("* * * * *", catch_up="all"), 9_000)
    ((cron, _),) = await read_crons(store)
    assert (cron.catch_up, cron.ticked_at) == ("all", 1_000)
    await publish(store, a_cron("5 * * * *", catch_up="all"), 9_000)
    ((cron, _),) = await read_crons(store)
    assert cron.ticked_at == 9_000
    await publish_crons(store, [], {"sweep"}, 9_000)
    assert await read_crons(store) == []


async def test_daylight_saving_fires_a_fixed_time_once() -> None:
    # T4: 02:30 does not exist on 29 March 2026 in Paris, and comes twice on 25 October.
    for day in ("2026-03-28T12:00:00", "2026-10-24T12:00:00"):
        clock = ManualClock(start_at=at(day))
        store = MemoryStore(clock=clock)
        await publish(store, a_cron("30 2 * * *", tz="Europe/Paris"), clock())
        ticker = CronSubmitter(store, lambda task: True)
        for _ in range(24 * 60):
            clock.advance(60)
            await ticker()
        assert len(await ticks(store)) == 1


async def test_reapers_return_a_lost_job_once(clock: ManualClock) -> None:
    # R5.76
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job()])
    (lease,) = await claim(store)
    moments = iter(range(0, 10**9, 1))
    reapers = [Reaper(store, CurrentPolicy(), 90, monotonic=lambda: float(next(moments))) for _ in range(3)]
    clock.advance(ms=LEASE_MS)
    for reaper in reapers:
        await reaper()
    (job,) = await store.get([lease.job_id])
    assert job is not None
    assert (job.state, job.crashes, job.attempts) == ("queued", 1, 1)
    assert sum(reaper.reaped for reaper in reapers) == 1


async def test_a_jump_of_the_stores_clock_reaps_nobody(clock: ManualClock) -> None:
    # T1
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job()])
    await claim(store)
    mine = 100.0
    reaper = Reaper(store, CurrentPolicy(), 90, monotonic=lambda: mine)
    await reaper()
    clock.advance(3_600)  # An hour in the store, a second here.
    mine += 1
    await reaper()
    assert reaper.reaped == 0
    mine += 91
    clock.advance(91)
    await reaper()
    assert reaper.reaped == 1


async def test_a_jump_of_the_stores_clock_buries_no_worker(clock: ManualClock) -> None:
    # T1: pruning marks workers dead that are past their deadline, and after a jump all of them are.
    store = MemoryStore(clock=clock)
    await register(store)
    mine = 100.0
    pruner = Pruner(store, CurrentPolicy(), ClockJumpDetector(90, lambda: mine))
    await pruner()
    clock.advance(3_600)
    mine += 1
    await pruner()
    await beat(store)
    mine += 91
    await pruner()
    assert [worker.state for worker in (await store.stats()).workers] == ["active"]


async def test_a_slow_reply_of_the_store_is_not_a_jump_of_its_clock(clock: ManualClock) -> None:
    mine = 100.0

    class SlowStore(MemoryStore):
        reply_seconds = 0

        async def snapshot(self) -> Snapshot:
            nonlocal mine
            seen = await super().snapshot()
            clock.advance(self.reply_seconds)
            mine += self.reply_seconds
            return seen

    store = SlowStore(clock=clock)
    await register(store)
    await store.submit([a_job()])
    await claim(store)
    reaper = Reaper(store, CurrentPolicy(), 90, monotonic=lambda: mine)
    store.reply_seconds = 15
    await reaper()
    store.reply_seconds = 0
    clock.advance(ms=LEASE_MS)
    mine += LEASE_MS / 1_000
    await reaper()
    assert reaper.reaped == 1


class WatchedStore(MemoryStore):
    """A store that counts how often a process reads the queue."""

    looked = 0

    async def snapshot(self) -> Snapshot:
        self.looked += 1
        return await super().snapshot()


@pytest.mark.parametrize("ago, looked", [(0.5, 0), (5.0, 1)])
async def test_a_witness_believes_a_runner_that_has_just_seen_nothing_wait(ago: float, looked: int) -> None:
    store = WatchedStore(clock=ManualClock())
    await sample_waits(store, CurrentPolicy(), lambda: time.monotonic() - ago)
    assert store.looked == looked


async def test_a_reaper_reads_the_stores_clock_seldom_while_nothing_is_overdue() -> None:
    store = WatchedStore(clock=ManualClock())
    mine = 100.0
    reaper = Reaper(store, CurrentPolicy(), 90, monotonic=lambda: mine)
    for _ in range(24):
        await reaper()
        mine += 5
    assert store.looked == 2


async def test_a_server_without_workers_leaves_sampling_and_preemption_to_others() -> None:
    class SampledStore(MemoryStore):
        samples = 0

        async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
            self.samples += 1

    store, serving = SampledStore(clock=ManualClock()), [False]
    await store.submit([a_job(needs=("gpu",))])
    chores = standard_chores(
        store,
        CurrentPolicy(),
        MetricsRecorder(),
        heartbeat=3.0,
        dead_after=10.0,
        knows_task=lambda _: True,
        has_workers=lambda: serving[0],
    )
    assert [(chore.name, chore.interval) for chore in chores] == [
        ("reaper", 1.0),
        ("pruner", 6.0),
        ("cron", 5.0),
        ("wait_sampling", 1.0),
        ("preemption", 0.4),
        ("metrics", 5.0),
        ("metrics_compaction", 120.0),
        ("series", 10.0),
    ]
    sampling = next(chore for chore in chores if chore.name == "wait_sampling")
    await sampling.run()
    assert store.samples == 0
    serving[0] = True
    await sampling.run()
    assert store.samples == 1
