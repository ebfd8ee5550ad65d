"""Creating jobs: enqueue, using, call, many at once; when two calls are one job; when a job may run."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headway import Headway, IdempotencyConflict, JobCancelled, Retry, State, Unique
from headway.core.errors import ConfigError, UnknownOption
from headway.testing import Testbed


def test_a_job_is_queued_until_somebody_runs_it(headway: Testbed) -> None:
    @headway.app.task
    def double(number: int) -> int:
        return 2 * number

    job = double.enqueue(21)
    assert job.status() == "queued"
    assert job.status() is State.QUEUED
    assert headway.drain().completed == [job]
    assert job.status() == "completed"
    assert job.result() == 42


async def test_an_async_caller_enqueues_and_waits_without_blocking(headway: Testbed) -> None:
    @headway.app.task
    async def double(number: int) -> int:
        return 2 * number

    job = await double.aenqueue(number=21)
    await headway.adrain()
    assert await job.aresult(timeout=5) == 42


def test_job_ids_are_uuids_of_version_7_and_sort_by_time(headway: Testbed) -> None:
    @headway.app.task
    def ping() -> None: ...

    ids = [ping.call().new.job_id for _ in range(2_000)]
    parsed = [uuid.UUID(job_id) for job_id in ids]
    assert len(set(ids)) == len(ids)
    assert {(found.version, found.variant) for found in parsed} == {(7, uuid.RFC_4122)}
    assert all(str(found) == job_id for found, job_id in zip(parsed, ids, strict=True))
    moments = [found.int >> 80 for found in parsed]
    assert moments == sorted(moments)


async def test_many_jobs_keep_their_order_across_batches(headway: Testbed) -> None:
    @headway.app.task
    async def ping(number: int) -> int:
        return number

    jobs = await headway.app.aenqueue_many([ping.call(number) for number in range(2_345)])
    assert len({job.id for job in jobs}) == 2_345
    assert (await headway.app.astats()).lanes["medium"].waiting == 2_345
    assert [job.arguments["number"] for job in headway.enqueued(ping)] == list(range(2_345))
    assert [job.id for job in jobs] == [entry.job.id for entry in headway.enqueued(ping)]


def test_many_jobs_of_several_tasks_can_go_together(headway: Testbed) -> None:
    @headway.app.task
    def small() -> str:
        return "small"

    @headway.app.task(priority="high")
    async def large(number: int) -> int:
        return number

    jobs = headway.app.enqueue_many([small.call(), large.using(delay=5).call(7), small.call()])
    headway.drain(advance=True)
    assert [job.result() for job in jobs] == ["small", 7, "small"]
    assert headway.app.enqueue_many([]) == []


def test_a_call_that_is_submitted_twice_is_one_job(headway: Testbed) -> None:
    @headway.app.task
    def ping() -> None: ...

    call = ping.call()
    assert headway.app.enqueue_many([call]) == headway.app.enqueue_many([call])
    assert headway.drain().attempts == 1


def test_options_of_a_call_win_over_the_task_and_the_task_over_its_lane(headway: Testbed) -> None:
    @headway.app.task(priority="low", max_retries=9, timeout=50, needs={"gpu"})
    def work() -> None: ...

    plain = work.enqueue().record()
    assert (plain.lane, plain.max_retries, plain.timeout_ms, plain.needs) == ("low", 9, 50_000, ("gpu",))
    asked = work.using(priority="high", max_retries=0, timeout=timedelta(seconds=2), needs=["ssd", "gpu"])
    info = asked.enqueue().record()
    assert (info.lane, info.max_retries, info.timeout_ms, info.needs) == ("high", 0, 2_000, ("gpu", "ssd"))
    assert work.enqueue().record().lane == "low"  # The task itself is untouched.


# R5.33, R5.34, R5.35
@pytest.mark.parametrize(
    "lane, max_retries, timeout_ms", [("high", 5, 300_000), ("medium", 3, 600_000), ("low", 2, 900_000)]
)
def test_a_lane_gives_the_defaults_of_its_jobs(headway: Testbed, lane: str, max_retries: int, timeout_ms: int) -> None:
    @headway.app.task
    def work() -> None: ...

    info = work.using(priority=lane).enqueue().record()
    assert (info.max_retries, info.timeout_ms) == (max_retries, timeout_ms)


def test_one_using_adds_to_another(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    info = work.using(priority="high", delay=5).using(tenant="acme", delay=7).enqueue().record()
    assert (info.lane, info.tenant, info.due_at) == ("high", "acme", headway.clock() + 7_000)


def test_a_delayed_job_is_left_alone_until_it_is_due(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    jobs = [
        work.using(delay=30).enqueue(),
        work.using(delay=timedelta(seconds=30)).enqueue(),
        work.using(run_after=datetime.fromtimestamp(headway.clock() / 1_000 + 30, UTC)).enqueue(),
    ]
    headway.clock.advance(29.999)
    assert headway.drain().completed == []
    headway.clock.advance(ms=1)
    assert headway.drain().completed == jobs


def test_a_moment_in_the_past_is_now(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    job = work.using(run_after=datetime(1999, 1, 1, tzinfo=UTC)).enqueue()
    assert headway.drain().completed == [job]


def test_an_expired_job_is_cancelled_and_never_runs(headway: Testbed) -> None:
    ran = []

    @headway.app.task
    def work(number: int) -> None:
        ran.append(number)

    late, in_time = work.using(expires=600).enqueue(1), work.using(expires=timedelta(minutes=11)).enqueue(2)
    headway.clock.advance(600)
    headway.drain()
    assert ran == [2]
    assert in_time.status() == "completed"
    assert late.status() == "cancelled"
    with pytest.raises(JobCancelled, match="expired"):
        late.result()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"delay": -1}, "delay must not be negative"),
        ({"delay": float("nan")}, "delay must be a number of seconds"),
        ({"delay": "5"}, "delay must be a number of seconds"),
        ({"delay": True}, "delay must be a number of seconds"),
        ({"delay": 1e300}, "year 9999"),
        ({"delay": 1, "run_after": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"run_after": datetime(2030, 1, 1)}, "has no time zone"),
        ({"run_after": "tomorrow"}, "a datetime with a time zone"),
        ({"expires": 0}, "expires must be above 0"),
        ({"expires": -3}, "expires must be above 0"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": 1e300}, "year 9999"),
        ({"max_retries": -1}, "max_retries must be a whole number"),
        ({"max_retries": 1.5}, "max_retries must be a whole number"),
        ({"max_retries": 10**30}, "max_retries must be a whole number"),
        ({"priority": "hihg"}, "no lane 'hihg'.*did you mean 'high'"),
        ({"tenant": 7}, "tenant must be text"),
        ({"tenant": "a\0b"}, "without NUL"),
        ({"tenant": "\ud800"}, "lone surrogates"),
        ({"idempotency_key": ""}, "1 to 255 characters"),
        ({"idempotency_key": "k" * 256}, "1 to 255 characters"),
        ({"idempotency_key": "\udfff"}, "lone surrogates"),
        ({"trace_id": 7}, "trace_id must be text"),
        ({"needs": "gpu"}, "needs is a set of names"),
        ({"needs": [""]}, "needs is a set of names"),
        ({"unique": Unique(by=["nubmer"])}, "'nubmer'.*did you mean 'number'"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_an_option_that_makes_no_sense_is_refused_by_name(
    headway: Testbed, options: dict[str, object], message: str
) -> None:
    # T8
    @headway.app.task
    def work(number: int = 0) -> None: ...

    with pytest.raises(ConfigError, match=message):
        work.using(**options)  # type: ignore[arg-type]
    assert headway.enqueued() == []


def test_an_unknown_option_suggests_the_nearest(headway: Testbed) -> None:
    @headway.app.task
    def work() -> None: ...

    with pytest.raises(UnknownOption, match="no option 'priorty'; did you mean 'priority'"):
        work.using(priorty="high")  # type: ignore[call-arg]


# ---------------------------------------------------------------------- one job instead of two


def test_an_idempotency_key_makes_one_job_of_two_submits(headway: Testbed) -> None:
    @headway.app.task
    def pay(amount: int, note: str = "") -> int:
        return amount

    first = pay.using(idempotency_key="o-9").enqueue(5, note="x")
    second = pay.using(idempotency_key="o-9").enqueue(note="x", amount=5)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert second.id == first.id
    headway.drain()
    assert second.result() == 5
    assert pay.using(idempotency_key="o-9").enqueue(5, "x").id == first.id  # Also once it has ended.
    headway.clock.advance(86_400)
    assert pay.using(idempotency_key="o-9").enqueue(5, "x").id != first.id  # R5.80


# R5.83
def test_an_idempotency_key_with_another_payload_is_a_conflict(headway: Testbed) -> None:
    @headway.app.task
    def pay(amount: int) -> None: ...

    @headway.app.task
    def refund(amount: int) -> None: ...

    pay.using(idempotency_key="o-9").enqueue(5)
    with pytest.raises(IdempotencyConflict, match="idempotency key"):
        pay.using(idempotency_key="o-9").enqueue(6)
    with pytest.raises(IdempotencyConflict):
        refund.using(idempotency_key="o-9").enqueue(5)
    assert not pay.using(idempotency_key="o-9", tenant="acme").enqueue(6).deduplicated  # Keys belong to a tenant.
    assert len(headway.enqueued()) == 2


def test_a_conflict_in_a_batch_keeps_none_of_it(headway: Testbed) -> None:
    @headway.app.task
    def pay(amount: int) -> None: ...

    keyed = pay.using(idempotency_key="o-9")
    with pytest.raises(IdempotencyConflict) as caught:
        headway.app.enqueue_many([pay.call(1), keyed.call(2), keyed.call(3)])
    assert caught.value.facts["index"] == 2
    assert headway.app.jobs() == []


# R2.14
def test_a_unique_job_stands_in_for_its_like_while_it_lives(headway: Testbed) -> None:
    @headway.app.task(unique=Unique(by=["report_id"]))
    def export(account_id: int, report_id: str) -> None: ...

    first = export.enqueue(7, "r-12")
    again = export.enqueue(8, "r-12")
    assert again.deduplicated
    assert again.id == first.id
    assert not export.enqueue(7, "r-13").deduplicated
    headway.drain()
    assert not export.enqueue(7, "r-12").deduplicated


# R2.62
def test_uniqueness_does_not_depend_on_how_the_arguments_were_passed(headway: Testbed) -> None:
    @headway.app.task(unique=Unique())
    def export(account: int, filters: dict[str, object], limit: int = 10) -> None: ...

    first = export.enqueue(1, {"a": 1, "b": 2})
    same = [
        export.enqueue(filters={"b": 2, "a": 1}, account=1),
        export.enqueue(1, filters={"a": 1, "b": 2}),
        export.enqueue(1, {"a": 1, "b": 2}, 10),
        export.enqueue(limit=10, account=1, filters={"b": 2, "a": 1}),
    ]
    assert [job.id for job in same] == [first.id] * 4
    assert all(job.deduplicated for job in same)
    assert export.enqueue(1, {"a": 1, "b": 3}).id != first.id


# R2.21
def test_a_unique_key_is_as_long_for_a_long_argument_as_for_a_short_one(headway: Testbed) -> None:
    @headway.app.task(name="export", unique=Unique())
    def export(text: str) -> None: ...

    short, long, other = (export.enqueue(text).record() for text in ("x", "y" * 10_000, "y" * 9_999 + "z"))
    assert len({len(info.unique_key or "") for info in (short, long, other)}) == 1
    assert len({info.unique_key for info in (short, long, other)}) == 3


def test_uniqueness_can_be_asked_for_one_call(headway: Testbed) -> None:
    @headway.app.task
    def export(number: int) -> None: ...

    once = export.using(unique=Unique(by=["number"]))
    assert not once.enqueue(1).deduplicated
    assert once.enqueue(1).deduplicated
    assert not export.enqueue(1).deduplicated


# ---------------------------------------------------------------------- tenants


def test_the_tenant_comes_from_the_parameter_named_by_fair_by(headway: Testbed) -> None:
    @headway.app.task(fair_by="account")
    def work(account: int | None = 7) -> None: ...

    assert work.enqueue(8).record().tenant == "8"
    assert work.enqueue(account=9).record().tenant == "9"
    assert work.enqueue().record().tenant == "7"  # A default counts like any other value.
    assert work.enqueue(None).record().tenant is None
    assert work.using(tenant="acme").enqueue(8).record().tenant == "acme"
    assert [job.record().tenant for job in headway.app.jobs(tenant="8")] == ["8"]


def test_a_tenant_that_a_store_could_not_keep_is_refused(headway: Testbed) -> None:
    @headway.app.task(fair_by="account")
    def work(account: str) -> None: ...

    with pytest.raises(ValueError, match="account must be text without NUL"):
        work.enqueue("a\0b")


# ---------------------------------------------------------------------- finding


def test_jobs_are_found_newest_first_by_what_they_are(headway: Testbed) -> None:
    @headway.app.task
    def ping(number: int) -> int:
        if number == 1:
            raise ValueError(number)
        return number

    @headway.app.task(priority="low", retry=Retry())
    def pong() -> None: ...

    one, two = ping.using(max_retries=0).enqueue(1), ping.enqueue(2)
    headway.drain()
    three = pong.enqueue()
    app = headway.app
    assert app.jobs() == [three, two, one]
    assert app.jobs(limit=1) == [three]
    assert app.jobs(status="completed") == [two]
    assert app.jobs(status=["queued", "dead_letter"]) == [three, one]
    assert app.jobs(task=ping) == app.jobs(task=ping.name) == [two, one]
    assert app.jobs(priority="low") == [three]
    assert app.jobs(status="completed")[0].result() == 2
    with pytest.raises(ConfigError, match="no status 'done'"):
        app.jobs(status="done")
    with pytest.raises(ConfigError, match="limit"):
        app.jobs(limit=-1)


def test_a_task_is_found_by_name(headway: Testbed) -> None:
    @headway.app.task(name="reports.export")
    def export() -> None: ...

    assert headway.app.find_task("reports.export") is export
    with pytest.raises(LookupError, match=r"no task 'report.export'.*did you mean 'reports.export'"):
        headway.app.find_task("report.export")


def test_an_app_opens_what_it_needs_again_after_it_was_closed() -> None:
    with Headway("memory://") as app:

        @app.task
        def ping() -> None: ...

        job = ping.enqueue()
        assert job.status() == "queued"
    assert ping.enqueue().status() == "queued"
    app.close()


@pytest.mark.parametrize("options", [{}, {"tenant": "acme", "delay": 5, "trace_id": "t", "priority": "high"}])
def test_the_short_way_to_a_job_comes_to_the_same_as_the_long_one(options: dict[str, Any]) -> None:
    app = Headway("memory://")

    @app.task(max_retries=2, needs=["gpu"])
    async def add(first: int, second: int) -> int:
        return first + second

    terms = add.using(**options).terms
    assert terms.rest is not None
    values = {"first": 1, "second": 2}
    short, long = terms.new_job(values), replace(terms, rest=None).new_job(values)
    assert short == long._replace(job_id=short.job_id)
