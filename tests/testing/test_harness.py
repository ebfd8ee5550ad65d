"""The test bed: isolation, draining, and messages of failed assertions."""

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from headway import Context, Discard, Headway, RetryAfter, Snooze
from headway.core.errors import BadArguments, ConfigError
from headway.testing import Drained, ManualClock, Testbed, adrain, assert_enqueued, drain

pytest_plugins = ["pytester"]


# ---------------------------------------------------------------------- an app in a bed


def test_a_users_app_is_kept_away_from_its_store_and_is_as_before_afterwards(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db")

    @app.task
    def work() -> int:
        return 1

    before = app.client
    with Testbed(app) as bed:
        assert bed.app is app
        job = work.enqueue()
        bed.drain()
        assert job.result() == 1
        assert list(tmp_path.iterdir()) == []
    assert app.client is before
    with pytest.raises(LookupError):
        job.status()
    with app:
        assert work.enqueue().status() == "queued"
    assert (tmp_path / "headway.db").exists()


def test_a_bed_leaves_the_app_alone_also_after_an_error() -> None:
    app = Headway("memory://")
    before = app.client
    with pytest.raises(RuntimeError, match="in the test"), Testbed(app):
        raise RuntimeError("in the test")
    assert app.client is before


def test_a_bed_is_made_for_one_block_at_a_time() -> None:
    with Testbed() as bed, pytest.raises(ConfigError, match="in use already"):
        bed.__enter__()


def test_each_bed_starts_empty() -> None:
    app = Headway("memory://")

    @app.task
    def work() -> None: ...

    for _ in range(2):
        with Testbed(app) as bed:
            assert bed.enqueued() == []
            assert app.jobs() == []
            work.enqueue()


def test_helpers_find_the_bed_of_an_app() -> None:
    app = Headway("memory://")

    @app.task
    def work(number: int) -> None: ...

    with Testbed(app):
        work.enqueue(5)
        assert_enqueued(app, work, number=5, count=1, priority="medium")
        assert len(drain(app).completed) == 1
    with pytest.raises(ConfigError, match="not in a test bed"):
        drain(app)


async def test_helpers_have_an_async_twin() -> None:
    app = Headway("memory://")

    @app.task
    def work() -> None: ...

    with Testbed(app):
        await work.aenqueue()
        assert len((await adrain(app)).completed) == 1


# ---------------------------------------------------------------------- draining


def test_jobs_run_in_the_order_of_the_policy(headway: Testbed) -> None:
    order: list[str] = []

    @headway.app.task
    def work(name: str) -> None:
        order.append(name)
        if name == "low 1":
            work.using(priority="high").enqueue("high from low")

    for priority in ("low", "medium", "high"):
        for number in (1, 2):
            work.using(priority=priority).enqueue(f"{priority} {number}")
    headway.drain()
    assert order == ["high 1", "high 2", "medium 1", "medium 2", "low 1", "high from low", "low 2"]


def test_draining_nothing_is_fine(headway: Testbed) -> None:
    assert headway.drain() == Drained([], [], [], [], [], 0)


def test_delays_and_retries_wait_for_the_clock(headway: Testbed, headway_clock: ManualClock) -> None:
    moments: list[int] = []

    @headway.app.task(max_retries=1, context=True)
    def work(context: Context) -> None:
        moments.append(headway.clock())
        if context.attempt == 1:
            raise RetryAfter(100)

    assert headway.clock is headway_clock
    began = headway.clock()
    job = work.using(delay=10).enqueue()
    assert headway.drain().attempts == 0
    headway_clock.advance(10)
    assert headway.drain().retried == [job]
    assert headway.drain().attempts == 0
    assert headway.drain(advance=True).completed == [job]
    assert moments == [began + 10_000, began + 110_000]


def test_advancing_runs_delayed_jobs_in_the_order_they_fall_due(headway: Testbed) -> None:
    order: list[int] = []

    @headway.app.task
    def work(number: int) -> None:
        order.append(number)
        if number == 20:
            work.using(delay=5).enqueue(25)

    for number in (30, 10, 20):
        work.using(delay=number).enqueue(number)
    began = headway.clock()
    headway.drain(advance=True)
    assert order == [10, 20, 25, 30]
    assert headway.clock() == began + 30_000


def test_a_drain_tells_what_became_of_the_jobs(headway: Testbed) -> None:
    @headway.app.task(max_retries=1)
    async def work(what: str) -> None:
        if what == "fail":
            raise ValueError(what)
        if what == "discard":
            raise Discard

    good, discarded, failed = (work.enqueue(what) for what in ("good", "discard", "fail"))
    cancelled = work.enqueue("cancel")
    cancelled.cancel()
    drained = headway.drain(advance=True)
    assert drained.completed == [good]
    assert drained.failed == [discarded, failed]
    assert drained.retried == [failed]
    assert drained.cancelled == []
    assert [str(error) for error in drained.errors] == ["fail", "fail"]
    assert drained.attempts == 4


def test_errors_can_be_raised_where_the_test_is(headway: Testbed) -> None:
    ran: list[str] = []

    @headway.app.task
    def work(what: str) -> None:
        ran.append(what)
        if what == "bad":
            raise LookupError("broken")

    bad, rest = work.enqueue("bad"), work.enqueue("rest")
    with pytest.raises(LookupError, match="broken") as caught:
        headway.drain(raise_errors=True)
    assert any(entry.name == "work" for entry in caught.traceback)  # It leads into the task.
    assert ran == ["bad"]
    assert (bad.record().attempts, rest.status()) == (1, "queued")
    headway.drain(advance=True)
    assert rest.status() == "completed"


def test_a_timeout_is_an_error_too(headway: Testbed) -> None:
    @headway.app.task(timeout=0.01)
    async def work() -> None:
        await asyncio.Event().wait()

    work.enqueue()
    with pytest.raises(TimeoutError, match="time limit"):
        headway.drain(raise_errors=True)


@pytest.mark.parametrize("advance", [True, False])
def test_a_drain_that_would_never_end_ends_with_an_error(headway: Testbed, advance: bool) -> None:
    @headway.app.task(name="again")
    def again() -> None:
        raise Snooze(10 if advance else 0)

    again.enqueue()
    headway.attempts_max = 50
    with pytest.raises(RuntimeError, match="50 attempts were made and jobs still come, the next one of again"):
        headway.drain(advance=advance)


def test_tasks_run_where_a_worker_would_run_them(headway: Testbed) -> None:
    @headway.app.task
    async def on_the_loop() -> int:
        return threading.get_ident()

    @headway.app.task
    def in_a_thread() -> int:
        return threading.get_ident()

    @headway.app.task(executor="process", context=True)
    def in_a_process(context: Context) -> int:
        context.progress(0.5)
        return threading.get_ident()

    @headway.app.task(executor="process")
    async def async_in_a_process() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    jobs = [task.enqueue() for task in (on_the_loop, in_a_thread, in_a_process, async_in_a_process)]
    headway.drain(raise_errors=True)
    here = threading.get_ident()
    assert [job.result() == here for job in jobs] == [True, False, False, True]


def test_jobs_have_every_capability_they_need(headway: Testbed) -> None:
    @headway.app.task(needs={"gpu"})
    def work() -> None: ...

    jobs = [work.enqueue(), work.using(needs={"ssd"}).enqueue()]
    assert headway.drain().completed == jobs


# R2.69
def test_a_job_of_an_unknown_task_waits_and_others_pass_it(headway: Testbed) -> None:
    @headway.app.task(name="gone", priority="high")
    def gone() -> None: ...

    @headway.app.task
    def work() -> None: ...

    lost, found = gone.enqueue(), work.enqueue()
    del headway.app.tasks["gone"]
    assert headway.drain(advance=True).completed == [found]
    assert (lost.status(), lost.record().attempts) == ("queued", 0)
    headway.app.tasks["gone"] = gone
    assert headway.drain().completed == [lost]


def test_jobs_that_wait_for_each_other_need_more_slots() -> None:
    with Testbed(slots=2) as bed:

        @bed.app.task
        async def parent() -> int:
            return 1 + await (await child.aenqueue()).aresult(timeout=20)

        @bed.app.task
        async def child() -> int:
            return 1

        job = parent.enqueue()
        bed.drain(raise_errors=True)
        assert job.result() == 2


async def test_a_drain_that_is_interrupted_gives_back_what_it_held(headway: Testbed) -> None:
    started = asyncio.Event()
    ended: list[str] = []

    @headway.app.task(max_retries=0)
    async def work() -> None:
        if started.is_set():
            return
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stopped")

    job = await work.aenqueue()
    draining = asyncio.create_task(headway.adrain())
    await started.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    assert (await job.astatus(), (await job.arecord()).attempts) == ("queued", 0)
    assert (await headway.adrain()).completed == [job]
    assert ended == ["stopped"]


async def test_draining_on_a_loop_asks_for_the_twin(headway: Testbed) -> None:
    with pytest.raises(RuntimeError, match="await adrain"):
        headway.drain()
    assert (await headway.adrain()).attempts == 0


# ---------------------------------------------------------------------- what was enqueued


def test_what_was_enqueued_is_listed_with_its_arguments(headway: Testbed) -> None:
    @headway.app.task(name="export", fair_by="account")
    def export(account: int, *tags: str, when: datetime | None = None) -> None: ...

    @headway.app.task(name="notify", persist=False)
    def notify() -> None: ...

    moment = datetime(2026, 1, 1, tzinfo=UTC)
    job = export.using(priority="low", delay=5).enqueue(7, "a", "b", when=moment)
    notify.enqueue()
    first, second = headway.enqueued()
    assert (first.job, first.task, first.priority, first.tenant, first.delay) == (job, "export", "low", "7", 5)
    assert first.arguments == {"account": 7, "tags": ("a", "b"), "when": moment}
    assert str(second) == "notify()  priority=medium"
    assert headway.enqueued(notify) == headway.enqueued("notify") == [second]


def test_jobs_count_as_enqueued_whatever_became_of_them(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    work.enqueue()
    headway.drain()
    work.using(idempotency_key="k").enqueue()
    work.using(idempotency_key="k").enqueue()
    headway.assert_enqueued(work, count=2)


def test_an_assertion_matches_by_the_arguments_it_names(headway: Testbed) -> None:
    @headway.app.task
    def work(number: int, pair: Any = None, limit: int = 10) -> None: ...

    work.enqueue(1, pair=(1, 2))
    work.enqueue(number=2)
    assert len(headway.assert_enqueued(work)) == 2
    headway.assert_enqueued(work, number=1, count=1)
    headway.assert_enqueued(work, number=1, pair=(1, 2))
    headway.assert_enqueued(work, pair=[1, 2])
    headway.assert_enqueued(work, number=ANY, count=2)
    headway.assert_enqueued(work, limit=10, count=2)
    headway.assert_enqueued(work, number=3, count=0)
    headway.assert_enqueued(work, priority="high", count=0)
    headway.assert_enqueued(work, tenant="acme", count=0)
    with pytest.raises(BadArguments, match="no parameter 'numbr'; did you mean 'number'"):
        headway.assert_enqueued(work, numbr=1)


def test_a_failed_assertion_lists_what_was_enqueued_instead(headway: Testbed) -> None:
    @headway.app.task(name="export")
    def export(account: int, word: str = "") -> None: ...

    with pytest.raises(AssertionError) as nothing:
        headway.assert_enqueued(export)
    assert str(nothing.value) == "expected a job export(); nothing was enqueued"
    export.using(priority="high", tenant="acme", delay=1.5).enqueue(7, "x")
    export.enqueue(8)
    with pytest.raises(AssertionError) as other:
        headway.assert_enqueued(export, account=9, priority="low", tenant="acme")
    assert str(other.value).splitlines() == [
        "expected a job export(account=9) with priority low for tenant acme; enqueued were:",
        "  export(account=7, word='x')  priority=high tenant=acme delay=1.5 s",
        "  export(account=8)  priority=medium",
    ]
    with pytest.raises(AssertionError, match=r"expected 3 jobs export\(\), but 2 matched; enqueued were:"):
        headway.assert_enqueued(export, count=3)


# ---------------------------------------------------------------------- crons and the clock


def test_a_cron_ticks_when_told(headway: Testbed) -> None:
    moments: list[int] = []

    @headway.app.cron("0 3 * * *", tz="Europe/Paris")
    def nightly() -> None:
        moments.append(headway.clock())

    @headway.app.task
    def work() -> None: ...

    first = headway.tick(nightly)
    assert headway.tick(nightly).id == first.id  # The one before still waits, so this tick is skipped.
    headway.drain()
    assert headway.tick(nightly).id != first.id
    headway.drain()
    assert [datetime.fromtimestamp(at / 1_000, UTC).hour for at in moments] == [1, 1]  # Summer time.
    assert moments[1] - moments[0] == 86_400_000
    with pytest.raises(ConfigError, match="is not a cron"):
        headway.tick(work)


async def test_a_cron_ticks_on_a_loop_too(headway: Testbed) -> None:
    @headway.app.cron("* * * * *", overlap="allow")
    async def often() -> None: ...

    one, two = await headway.atick(often), await headway.atick(often)
    assert one != two
    assert (await headway.adrain()).completed == [one, two]


def test_a_clock_moves_only_forward() -> None:
    clock = ManualClock(start_at=1_000)
    assert clock() == 1_000
    clock.advance(1.5, ms=250)
    assert clock() == 2_750
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


# ---------------------------------------------------------------------- the plugin


GUARDED = """
import pytest
from headway import Headway
from headway.testing import Testbed

app = Headway("sqlite:///real.db")

@app.task
def send(to: str) -> None: ...

def test_forgets_the_bed():
    send.enqueue("ada")

async def forget():
    await send.aenqueue("ada")

def test_forgets_it_on_a_loop():
    import asyncio
    asyncio.run(forget())

def test_reads():
    app.jobs()

def test_with_a_bed():
    with Testbed(app) as bed:
        send.enqueue("ada")
        bed.assert_enqueued(send, to="ada")

def test_with_the_fixture(headway):
    assert headway.app.jobs() == []

@pytest.mark.headway_store
def test_that_may():
    assert send.enqueue("ada").status() == "queued"
"""


def test_a_guard_keeps_tests_away_from_real_stores(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(GUARDED)
    command = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--strict-markers")
    result = pytester.runpytest_subprocess(*command, "-o", "headway_guard=true", "-k", "not that_may")
    result.assert_outcomes(passed=2, failed=3, deselected=1)
    result.stdout.fnmatch_lines(["*RuntimeError: this test would use a real Headway store; wrap it in*"])
    assert not (pytester.path / "real.db").exists()
    pytester.runpytest_subprocess(*command, "-o", "headway_guard=true", "-k", "that_may").assert_outcomes(
        passed=1, deselected=5
    )
    pytester.runpytest_subprocess(*command).assert_outcomes(passed=6)  # Without the option nothing is refused.


def test_a_failed_assertion_shows_the_test_and_not_headway(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(headway):
            @headway.app.task
            def send(to: str) -> None: ...

            headway.assert_enqueued(send, to="ada")
        """
    )
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(failed=1)
    assert "bed.py" not in result.stdout.str()
    assert "headway.assert_enqueued(send" in result.stdout.str()


def test_the_fixtures_need_no_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_one(headway, headway_clock):
            @headway.app.task
            async def add(a: int, b: int) -> int:
                return a + b

            job = add.enqueue(1, b=2)
            headway.assert_enqueued(add, a=1)
            headway.drain()
            assert job.result() == 3
            assert headway.clock is headway_clock
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    result.assert_outcomes(passed=1)
