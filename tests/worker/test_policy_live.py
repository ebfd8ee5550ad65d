"""A worker follows the store's policy: changes take effect within moments, without a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from headway import Headway, Job, Limit, Worker
from headway.core.log_event import LogEvent
from headway.core.policy.document import BUILT_IN, Ladder, Lane, LimitRule, Policy, Reserve, Rung
from headway.core.policy.writer import policy_data
from headway.policy_store.rule_documents import read_costs
from headway.policy_store.versions import CURRENT, apply_policy
from headway.stores.base import POLICIES
from tests.worker.resting import at_rest

PROMPTLY = 4.0  # Seconds; a worker is told of another policy at once, but the machine may be busy.
NO_RESERVE = replace(BUILT_IN, reserve=Reserve(slots=0))
ONE_RESERVED = replace(BUILT_IN, reserve=Reserve(slots=1))


class GatedApp:
    """An app whose jobs wait until a test releases them, and the names of running jobs."""

    def __init__(self, app: Headway) -> None:
        self.app = app
        self.running: list[str] = []
        self.ran: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}

        @app.task(name="hold")
        async def hold(name: str) -> None:
            self.running.append(name)
            self.ran.append(name)
            try:
                await self._gate(name).wait()
            finally:
                self.running.remove(name)

        self.hold = hold

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def submit(self, lane: str, *names: str) -> list[Job[None]]:
        return [await self.hold.using(priority=lane).aenqueue(name) for name in names]

    def let_go(self, *names: str) -> None:
        for name in names:
            self._gate(name).set()

    async def apply(self, policy: Policy) -> None:
        await apply_policy(await self.app.client.store(), policy, now_at=time.time_ns() // 1_000_000)

    async def follows(self, policy: Policy) -> None:
        """Apply a policy, and wait until the worker follows it."""
        await self.apply(policy)
        await until(lambda: self.app.policy == policy, within=PROMPTLY)

    async def settle(self) -> None:
        """Wait until no more jobs can start."""
        await at_rest(self.app)


async def until(condition: Callable[[], bool | Awaitable[bool]], *, within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while True:
            found = condition()
            if isinstance(found, bool):
                if found:
                    return
            elif await found:
                return
            await asyncio.sleep(0.005)


@pytest.fixture
async def gated() -> AsyncIterator[GatedApp]:
    async with Headway("memory://", slots=2, grace=0) as app:
        yield GatedApp(app)


# ---------------------------------------------------------------------- the reserve


async def test_a_reserve_that_is_set_holds_from_then_on_and_one_that_is_lifted_is_used_at_once(gated: GatedApp) -> None:
    # R1.25, R1.47, R1.27
    await gated.apply(NO_RESERVE)
    async with Worker(gated.app):
        await gated.submit("low", "a", "b", "c")
        await until(lambda: sorted(gated.running) == ["a", "b"])
        await gated.follows(ONE_RESERVED)
        gated.let_go("a")
        await until(lambda: gated.running == ["b"])
        await gated.settle()
        assert gated.running == ["b"]  # The slot that is free is kept.
        await gated.submit("high", "H")
        await until(lambda: sorted(gated.running) == ["H", "b"])
        gated.let_go("H")
        await until(lambda: gated.running == ["b"])
        await gated.apply(NO_RESERVE)
        await until(lambda: sorted(gated.running) == ["b", "c"], within=PROMPTLY)


async def test_a_reserve_that_was_asked_of_the_worker_stays(gated: GatedApp) -> None:
    await gated.apply(NO_RESERVE)
    async with Worker(gated.app, reserved=1):
        await gated.submit("low", "a", "b")
        await until(lambda: gated.running == ["a"])
        await gated.follows(replace(NO_RESERVE, crash_limit=9))
        await gated.settle()
        assert gated.running == ["a"]


async def test_why_a_job_waits_follows_the_reserve(gated: GatedApp) -> None:
    # R1.47
    await gated.apply(NO_RESERVE)
    async with Worker(gated.app):
        await gated.submit("low", "a")
        await until(lambda: gated.running == ["a"])
        await gated.follows(ONE_RESERVED)
        [waits] = await gated.submit("low", "b")

        async def says_so() -> bool:
            return [reason.code for reason in await waits.awhy()] == ["reserved"]

        await until(says_so, within=PROMPTLY)
        assert gated.running == ["a"]


async def test_who_must_leave_a_slot_free_does_so_whatever_starts_beside_it(gated: GatedApp) -> None:
    # R1.47: trunk reservation, and both lanes waited when the worker came.
    await gated.apply(replace(BUILT_IN, reserve=Reserve(slots=1, rule="leave_free")))
    await gated.submit("high", "H")
    await gated.submit("low", "a")
    async with Worker(gated.app):
        await until(lambda: "H" in gated.running)
        await gated.settle()
        assert gated.running == ["H"]
        gated.let_go("H")
        await until(lambda: gated.running == ["a"])


async def test_a_reserve_of_the_pool_is_kept_over_all_workers() -> None:
    # R1.25
    app = Headway("memory://", slots=2, grace=0)
    gated = GatedApp(app)
    async with app:
        await gated.apply(replace(BUILT_IN, reserve=Reserve(slots=1, scope="pool")))
        async with Worker(app), Worker(app):
            await gated.submit("low", "a", "b", "c", "d")
            await until(lambda: len(gated.running) == 3)
            await gated.settle()
            assert len(gated.running) == 3
            await gated.submit("high", "H")
            await until(lambda: "H" in gated.running)


# ---------------------------------------------------------------------- limits, lanes, rungs


async def test_a_limit_that_is_lowered_or_raised_holds_at_once(gated: GatedApp) -> None:
    await gated.apply(replace(NO_RESERVE, limits={"all": LimitRule(concurrency=2)}))
    async with Worker(gated.app):
        jobs = await gated.submit("medium", "a", "b", "c", "d")
        await until(lambda: sorted(gated.running) == ["a", "b"])
        await gated.apply(replace(NO_RESERVE, limits={"all": LimitRule(concurrency=1)}))
        gated.let_go("a")
        await until(lambda: gated.running == ["b"])
        await gated.settle()
        assert gated.running == ["b"]
        [reason] = await jobs[2].awhy()
        assert reason.text.startswith("all runs 1 of 1")
        await gated.apply(NO_RESERVE)
        await until(lambda: sorted(gated.running) == ["b", "c"], within=PROMPTLY)


async def test_a_lane_that_is_added_is_served_by_its_level(gated: GatedApp) -> None:
    lanes = {name: replace(lane, level=lane.level + 1) for name, lane in BUILT_IN.lanes.items()}
    added = replace(NO_RESERVE, lanes={**lanes, "urgent": Lane(0, 9, max_retries=1, timeout_ms=5_000)})
    async with Worker(gated.app, slots=1):
        await gated.submit("high", "first")
        await until(lambda: gated.running == ["first"])
        await gated.follows(added)
        await gated.submit("urgent", "second")
        gated.let_go("first")
        await until(lambda: gated.running == ["second"])
        await gated.submit("high", "high")
        await gated.submit("urgent", "urgent")
        for name in ("second", "urgent", "high"):
            gated.let_go(name)
        await until(lambda: len(gated.ran) == 4)
        assert gated.ran == ["first", "second", "urgent", "high"]


@pytest.mark.parametrize("duration", [pytest.param(None, id="plain"), pytest.param("fast", id="of a duration")])
async def test_a_better_lane_comes_first_even_with_the_first_job_it_ever_had(
    gated: GatedApp, duration: str | None
) -> None:
    # R1.43
    async with Worker(gated.app, slots=1):
        await gated.submit("low", "first")
        await until(lambda: gated.running == ["first"])
        await gated.submit("low", "low")
        await gated.hold.using(priority="high", duration=duration).aenqueue("high")
        for name in ("first", "high", "low"):
            gated.let_go(name)
        await until(lambda: len(gated.ran) == 3)
        assert gated.ran == ["first", "high", "low"]


async def test_jobs_of_a_lane_that_was_removed_still_run(gated: GatedApp) -> None:
    added = replace(NO_RESERVE, lanes={**BUILT_IN.lanes, "urgent": Lane(0, 9, max_retries=1, timeout_ms=5_000)})
    await gated.apply(added)
    async with Worker(gated.app, slots=1):
        await gated.submit("low", "first")
        await until(lambda: gated.running == ["first"])
        await gated.submit("urgent", "forgotten")
        await gated.submit("low", "low")
        await gated.follows(NO_RESERVE)
        for name in ("first", "low", "forgotten"):
            gated.let_go(name)
        await until(lambda: len(gated.ran) == 3)
        assert gated.ran == ["first", "low", "forgotten"]


async def test_a_job_is_stopped_at_the_end_of_its_rung(gated: GatedApp) -> None:
    # R3.5, R3.7, R3.9
    rungs = (Rung("fast", 200), Rung("slow", 60_000))
    await gated.apply(replace(NO_RESERVE, ladder=Ladder(rungs)))
    async with Worker(gated.app):
        fast = await gated.hold.using(duration="fast").aenqueue("fast")
        elastic = await gated.hold.using(duration="default").aenqueue("elastic")
        await until(lambda: "elastic" in gated.running)
        await until(_is(fast, "failed"))
        record = await fast.arecord()
        assert (record.reason, record.error and record.error.message) == ("time_limit", "time limit (0.2 s)")
        assert (await elastic.arecord()).assigned == "slow"
        gated.let_go("elastic")
        await elastic.aresult(10)


async def test_a_ladder_lets_faster_jobs_past_one_that_does_not_fit(gated: GatedApp) -> None:
    # R3.92, R3.6
    rungs = (Rung("fast", 60_000), Rung("slow", 90_000, limit=1))
    await gated.apply(replace(NO_RESERVE, ladder=Ladder(rungs)))
    async with Worker(gated.app):
        for name, duration in (("s1", "slow"), ("s2", "slow"), ("f1", "fast")):
            await gated.hold.using(duration=duration).aenqueue(name)
        await until(lambda: sorted(gated.running) == ["f1", "s1"])
        gated.let_go("s1")
        await until(lambda: sorted(gated.running) == ["f1", "s2"])


def _is(job: Job[Any], state: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return await job.astatus() == state

    return look


# ---------------------------------------------------------------------- pauses, rates, what is told


async def test_a_pause_holds_at_once_and_its_end_is_heard(gated: GatedApp) -> None:
    async with Worker(gated.app):
        await gated.app.apause(task="hold")
        [job] = await gated.submit("high", "a")
        await gated.settle()
        assert gated.running == []
        assert [reason.code for reason in await job.awhy()] == ["paused"]

        async def waits_aside() -> bool:
            return (await job.arecord()).blocked_by is not None

        await until(waits_aside)  # A worker has met the job, so the store knows why it waits.
        await asyncio.sleep(0.01)  # The wait is counted in milliseconds.
        await gated.app.aresume(task="hold")
        await until(lambda: gated.running == ["a"], within=PROMPTLY)
        waited = await job.awaited()
        assert waited["paused"] == max(waited.values())


async def test_a_rate_starts_jobs_evenly_and_no_later_than_it_must(gated: GatedApp) -> None:
    @gated.app.task(name="call", limits=[Limit(rate="5/s")])
    async def call(number: int) -> int:
        return number

    async with Worker(gated.app, slots=8):
        jobs = await gated.app.aenqueue_many([call.call(number) for number in range(6)])
        for job in jobs:
            await job.aresult(10)
        started = [(await job.arecord()).started_at or 0 for job in jobs]
    apart = [later - earlier for earlier, later in pairwise(started)]
    assert min(apart) >= 200
    assert started[-1] - started[0] < 2_500  # A poll would come but once a second.


@pytest.mark.slow
async def test_a_job_that_has_started_tells_what_it_had_waited_for(gated: GatedApp) -> None:
    async with Worker(gated.app, slots=1):
        await gated.submit("medium", "a")
        await until(lambda: gated.running == ["a"])
        [job] = await gated.submit("medium", "b")
        await asyncio.sleep(2.5)
        assert [reason.code for reason in await job.awhy()] == ["slots_full"]
        gated.let_go("a")
        await until(lambda: gated.running == ["b"])
        assert await job.awhy() == []
        waited = await job.awaited()
        assert waited == {"slots_full": pytest.approx(2.5, abs=1.0)}


# ---------------------------------------------------------------------- policies that cannot be read


async def write_newer(gated: GatedApp, version: int) -> None:
    """Apply a policy as a newer release may."""
    store = await gated.app.client.store()
    data = policy_data(BUILT_IN) | {"quantum": 3}
    body = {"version": version, "applied_at": 5, "note": "", "digest": f"new {version}", "policy": data}
    await store.write(POLICIES, f"{version:06d}", msgspec.json.encode(body))
    await store.write(POLICIES, CURRENT, msgspec.json.encode({"version": version, "before": version - 1}))


async def test_a_version_that_this_headway_cannot_read_keeps_the_last_in_force(
    gated: GatedApp, caplog: pytest.LogCaptureFixture
) -> None:
    await gated.apply(replace(NO_RESERVE, crash_limit=7))
    async with Worker(gated.app):
        with caplog.at_level(logging.ERROR, "headway.policy"):
            await write_newer(gated, 2)
            await until(lambda: bool(caplog.records), within=PROMPTLY)
            await asyncio.sleep(1.2)  # It looks again and again, and says so once.
        assert [record.getMessage().partition(" error")[0] for record in caplog.records] == [
            "policy.unreadable version=2 kept=1"
        ]
        assert gated.app.policy.crash_limit == 7
        await gated.submit("low", "a")
        await until(lambda: gated.running == ["a"])
        await gated.follows(replace(NO_RESERVE, crash_limit=8))
        assert gated.app.in_force.version == 3


async def test_a_worker_that_starts_under_a_policy_it_cannot_read_goes_by_the_built_in(
    gated: GatedApp, caplog: pytest.LogCaptureFixture
) -> None:
    await gated.apply(BUILT_IN)
    await write_newer(gated, 2)
    with caplog.at_level(logging.ERROR, "headway.policy"):
        async with Worker(gated.app):
            await gated.submit("low", "a")
            await until(lambda: gated.running == ["a"])
    assert "policy.unreadable version=2" in caplog.text
    assert gated.app.policy == BUILT_IN


# ---------------------------------------------------------------------- durations


async def test_what_jobs_take_is_learned_and_made_known(gated: GatedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    # R4.40
    monkeypatch.setattr("headway.worker.runner.LEARN_EVERY", 0.1)

    @gated.app.task(name="nap")
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with Worker(gated.app, slots=8):
        store = await gated.app.client.store()
        jobs = await gated.app.aenqueue_many([nap.call(0.3) for _ in range(8)])
        for job in jobs:
            await job.aresult(10)

        async def is_known() -> bool:
            return "nap" in await read_costs(store)

        await until(is_known)
        assert (await read_costs(store))["nap"] == pytest.approx(300_000, rel=0.5)
        await gated.submit("high", "a")
        await until(lambda: gated.running == ["a"])
        assert "hold" not in await read_costs(store)  # It still runs.


@pytest.mark.parametrize("ladder", [True, False])
async def test_a_worker_warns_of_durations_without_a_ladder(ladder: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = Headway("memory://")

    @app.task(name="render", duration="slow")
    async def render() -> None: ...

    if ladder:
        policy = replace(BUILT_IN, ladder=Ladder((Rung("slow", 1_000),)))
        await apply_policy(await app.client.store(), policy, now_at=time.time_ns() // 1_000_000)
    async with app, Worker(app):
        pass
    events = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    ignored = [event.facts["tasks"] for event in events if event.code == "task.duration_ignored"]
    assert ignored == ([] if ladder else [["render"]])
