"""A paused cron submits nothing, and does not catch up when it is resumed."""

from __future__ import annotations

import msgspec

from headway.maintenance.cron import CronSubmitter, run_cron_now
from headway.policy_store.catalogue import CRONS, CronDocument, pause_cron, publish_crons, resume_cron
from headway.security.audit import read_audit
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock


def each_minute(now_at: int, overlap: str = "allow") -> CronDocument:
    return CronDocument(
        task="tidy", expression="* * * * *", tz="UTC", lane="low", max_retries=0, timeout_ms=1_000, payload=b"\x01{}",
        ticked_at=now_at, catch_up="all", overlap=overlap,
    )  # fmt: skip


async def test_a_paused_cron_submits_nothing_until_it_is_resumed(store: Store, clock: ManualClock) -> None:
    await store.write(CRONS, "tidy", msgspec.json.encode(each_minute(clock())))
    chore = CronSubmitter(store, lambda _: True)

    async def submitted() -> int:
        await chore()
        return len(await store.find(JobQuery(task="tidy")))

    clock.advance(120)
    assert await submitted() == 2
    assert await pause_cron(store, "tidy")
    clock.advance(300)
    assert await submitted() == 2
    assert await resume_cron(store, "tidy")
    assert await submitted() == 2  # It was told to catch up with all ticks, but these were not missed.
    clock.advance(60)
    assert await submitted() == 3


async def test_a_worker_that_starts_leaves_a_pause_alone(store: Store, clock: ManualClock) -> None:
    await store.write(CRONS, "tidy", msgspec.json.encode(each_minute(clock())))
    await pause_cron(store, "tidy")
    await publish_crons(store, [each_minute(0, overlap="skip")], {"tidy"}, clock())
    clock.advance(120)
    await CronSubmitter(store, lambda _: True)()
    assert await store.find(JobQuery(task="tidy")) == []


async def test_a_paused_cron_runs_by_hand_and_the_audit_says_so(store: Store, clock: ManualClock) -> None:
    await store.write(CRONS, "tidy", msgspec.json.encode(each_minute(clock())))
    await pause_cron(store, "tidy")
    first = await run_cron_now(store, "tidy", who="ops")
    clock.advance(ms=5)
    second = await run_cron_now(store, "tidy", who="ops")
    assert first is not None
    assert second is not None
    assert first.job_id != second.job_id
    [job] = [job for job in await store.get([first.job_id]) if job is not None]
    assert (job.task, job.lane, job.payload) == ("tidy", "low", b"\x01{}")
    newest = (await read_audit(store))[0]
    assert (newest.who, newest.what, newest.target, newest.after["job"]) == ("ops", "cron.run", "tidy", second.job_id)
    assert await run_cron_now(store, "nothing", who="ops") is None
    assert not await pause_cron(store, "nothing")
    assert not await resume_cron(store, "nothing")
