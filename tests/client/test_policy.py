"""The policy from an application's view: limits, lanes and durations, pauses, why, and the policy file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway import Context, Headway, JobNotFound, Limit, NotStored, Unique, Worker
from headway.client.codec import read_payload
from headway.core.errors import ConfigError, PolicyError
from headway.core.job import JobId
from headway.core.job import JobRecord as Record
from headway.core.policy.document import (
    BUILT_IN,
    Ladder,
    Lane,
    LimitRule,
    Policy,
    Reserve,
    Rung,
    TaskRule,
)
from headway.core.policy.enforced import PAUSE, PauseSet
from headway.policy_store.versions import apply_policy, current_version, history
from headway.stores.base import Store
from headway.stores.memory import MemoryStore
from headway.testing import ManualClock, Testbed
from headway.worker.backend.store import apply_file
from tests.conformance.builders import claim, register, the_job

URGENT = replace(BUILT_IN, lanes={**BUILT_IN.lanes, "urgent": Lane(0, 9, max_retries=1, timeout_ms=5_000)})
LADDER = replace(BUILT_IN, ladder=Ladder((Rung("quick", 1_000), Rung("long", 60_000, limit=2))))
EXPORT = "reports.export"


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every submit read the store's policy, so that no test has to wait for it."""
    monkeypatch.setattr("headway.client.app.FOLLOW_EVERY", 0.0)


@pytest.fixture
async def app() -> AsyncIterator[Headway]:
    async with Headway("memory://") as found:
        yield found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headway.db?synchronous=normal"


async def apply(app: Headway, policy: Policy) -> None:
    await apply_policy(await app.client.store(), policy, now_at=1)


async def stored(app: Headway, job_id: JobId) -> Record:
    return await the_job(await app.client.store(), job_id)


async def running(app: Headway, *, slots: int = 50) -> list[tuple[Any, ...]]:
    """Claim all jobs that may start. Return the task and tenant of each."""
    store = await app.client.store()
    await register(store, slots=slots)
    return [(lease.task, lease.tenant) for lease in await claim(store, free=slots)]


# ---------------------------------------------------------------------- limits: what may be asked


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "give concurrency, rate or both"),
        ({"by": "account"}, "give concurrency, rate or both"),
        ({"concurrency": 0}, "concurrency is a whole number of at least 1, not 0"),
        ({"concurrency": -3}, "concurrency is a whole number of at least 1, not -3"),
        ({"concurrency": 1.5}, "concurrency is a whole number of at least 1, not 1.5"),
        ({"concurrency": True}, "concurrency is a whole number of at least 1, not True"),
        ({"concurrency": "3"}, "concurrency is a whole number of at least 1, not '3'"),
        ({"rate": "often"}, "rate: expected a rate such as '100/min', '10/s' or '20/10s', found 'often'"),
        ({"rate": "0/min"}, "rate: expected a rate of 1 to"),
        ({"rate": "10/fortnight"}, "rate: expected a rate such as"),
        ({"rate": 100}, "rate: expected a rate such as"),
        ({"concurrency": 1, "burst": 2}, "burst is a whole number of at least 1 beside a rate, not 2"),
        ({"rate": "10/s", "burst": 0}, "burst is a whole number of at least 1 beside a rate, not 0"),
        ({"rate": "10/s", "burst": 1.5}, "burst is a whole number of at least 1 beside a rate, not 1.5"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_a_limit_that_makes_no_sense_is_refused_where_it_is_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^Limit: {message}"):
        Limit(**options)


@pytest.mark.parametrize(
    "limit, name, rule",
    [
        (Limit(concurrency=3), "t:concurrency", LimitRule(concurrency=3, tasks=("t",))),
        (Limit(concurrency=3, by="a"), "t:concurrency:a", LimitRule(concurrency=3, by="a", tasks=("t",))),
        (Limit(rate="100/min"), "t:rate/1m", LimitRule(count=100, period_ms=60_000, tasks=("t",))),
        (Limit(rate="5/10s", burst=2), "t:rate/10s", LimitRule(count=5, period_ms=10_000, burst=2, tasks=("t",))),
        (
            Limit(concurrency=2, rate="1/s", by="tenant"),
            "t:concurrency+rate/1s:tenant",
            LimitRule(2, 1, 1_000, by="tenant", tasks=("t",)),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_limit_has_a_name_by_which_a_policy_overrides_it(limit: Limit, name: str, rule: LimitRule) -> None:
    assert (limit.name("t"), limit.rule("t")) == (name, rule)
    assert Limit.of(rule).rule("t") == rule


def test_limits_of_one_task_that_differ_in_kind_stand_side_by_side(app: Headway) -> None:
    limits = [Limit(concurrency=1), Limit(rate="1/s"), Limit(rate="9/min"), Limit(concurrency=1, by="a")]

    @app.task(name="t", limits=limits)
    def work(a: int) -> None: ...

    assert list(work.limits) == ["t:concurrency", "t:rate/1s", "t:rate/1m", "t:concurrency:a"]


@pytest.mark.parametrize("by", [pytest.param("acount", id="no parameter"), pytest.param(7, id="no name")])
def test_a_limit_by_what_is_no_parameter_is_refused(app: Headway, by: Any) -> None:
    def work(account: int) -> None: ...

    with pytest.raises(ConfigError, match=r"(?i)limit.* by|a limit names"):
        app.task(limits=[Limit(concurrency=1, by=by)])(work)


# ---------------------------------------------------------------------- limits: what they do


async def test_the_limits_of_a_task_hold_from_its_first_job_on(app: Headway) -> None:
    @app.task(name=EXPORT, limits=[Limit(concurrency=2, by="account")])
    def export(account: int, page: int = 0) -> None: ...

    jobs = [await export.aenqueue(account) for account in (7, 7, 7, 8)]
    assert [(await stored(app, job.id)).limits for job in jobs[2:]] == [
        (f"{EXPORT}:concurrency:account=7",),
        (f"{EXPORT}:concurrency:account=8",),
    ]
    assert len(await running(app)) == 3
    assert [reason.text for reason in await jobs[2].awhy() if reason.code == "limit"] == ["account 7 runs 2 of 2"]


async def test_many_jobs_at_once_are_bound_like_one(app: Headway) -> None:
    @app.task(limits=[Limit(concurrency=1, by="account")])
    def export(account: int) -> None: ...

    await app.aenqueue_many([export.call(account) for account in (7, 8, 7, 8, 7)])
    assert len(await running(app)) == 2


@pytest.mark.parametrize(
    "one, other, alike",
    [
        pytest.param({"a": 7}, {"a": 7}, True, id="the same"),
        pytest.param({"a": 7}, {"a": 8}, False, id="another"),
        pytest.param({}, {"a": 0}, True, id="the default, said or not"),
        pytest.param({"a": "x" * 500}, {"a": "x" * 500}, True, id="long and the same"),
        pytest.param({"a": "x" * 500}, {"a": "x" * 499 + "y"}, False, id="long and another"),
        pytest.param({"a": [1, {"b": 2, "c": 3}]}, {"a": [1, {"c": 3, "b": 2}]}, True, id="any order of keys"),
        pytest.param({"a": [1]}, {"a": [2]}, False, id="lists"),
        pytest.param({"a": None}, {"a": 0}, False, id="nothing is a value too"),
        pytest.param({"a": "b=c"}, {"a": "b"}, False, id="an equals sign in it"),
        pytest.param({"b": 1}, {"b": 2}, True, id="by a alone"),
    ],
)
async def test_a_limit_is_counted_by_the_value_of_its_parameter(
    app: Headway, one: dict[str, Any], other: dict[str, Any], alike: bool
) -> None:
    @app.task(limits=[Limit(concurrency=1, by="a")])
    def work(a: Any = 0, b: int = 0) -> None: ...

    await work.aenqueue(**one)
    await work.aenqueue(**other)
    assert len(await running(app)) == (1 if alike else 2)


async def test_keys_stay_short_however_long_the_value(app: Headway) -> None:
    @app.task(name="t", limits=[Limit(concurrency=1, by="a")])
    def work(a: str) -> None: ...

    job = await work.aenqueue("x" * 5_000)
    [key] = (await stored(app, job.id)).limits
    assert len(key) < 60


async def test_a_limit_by_a_parameter_is_each_tenants_own(app: Headway) -> None:
    # S-32: one tenant's account 7 is not another's, whatever the values look like.
    @app.task(name="t", limits=[Limit(concurrency=1, by="account")])
    def work(account: str) -> None: ...

    tenants = ["acme", "bolt", None, "acme", "a=7", "a"]
    accounts = ["7", "7", "7", "7", "7", "7=7"]
    jobs = [
        await work.using(tenant=tenant).aenqueue(account) for tenant, account in zip(tenants, accounts, strict=True)
    ]
    keys = [(await stored(app, job.id)).limits[0] for job in jobs]
    assert keys[:4] == [
        "t:concurrency:account=acme=7",
        "t:concurrency:account=bolt=7",
        "t:concurrency:account=7",
        keys[0],
    ]
    assert len(set(keys)) == 5
    assert sorted(await running(app), key=str) == [("t", "a"), ("t", "a=7"), ("t", "acme"), ("t", "bolt"), ("t", None)]
    [reason] = [reason for reason in await jobs[3].awhy() if reason.code == "limit"]
    assert reason.text == "account 7 runs 1 of 1"


async def test_a_limit_of_global_scope_is_shared_by_tenants(app: Headway) -> None:
    rule = LimitRule(concurrency=1, by="host", scope="global")
    await apply(app, replace(BUILT_IN, limits={"api": rule}))

    @app.task(name="t", limits=[Limit(concurrency=2, by="host", scope="global")])
    def work(host: str) -> None: ...

    assert work.limits == {"t:concurrency:host:global": LimitRule(2, by="host", tasks=("t",), scope="global")}
    jobs = [await work.using(tenant=tenant).aenqueue("a=b") for tenant in ("acme", "bolt")]
    assert {(await stored(app, job.id)).limits for job in jobs} == {("api=a%3Db", "t:concurrency:host:global=a%3Db")}
    assert len(await running(app)) == 1
    assert [reason.text for reason in await jobs[1].awhy() if reason.code == "limit"] == ["host a=b runs 1 of 1"]


@pytest.mark.parametrize(
    "options", [{"scope": "all", "by": "a"}, {"scope": "global"}, {"scope": "global", "by": "tenant"}]
)
def test_a_scope_is_for_limits_by_a_parameter(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="scope"):
        Limit(concurrency=1, **options)


async def test_of_a_unique_task_each_tenant_has_its_own_job(app: Headway) -> None:
    # S-32: also where the tenant is a parameter.
    @app.task(name="t", fair_by="customer", unique=Unique(by=["report"]))
    def work(customer: str, report: int) -> None: ...

    ids = [(await work.aenqueue(customer, 1)).id for customer in ("acme", "bolt", "acme")]
    assert (ids[0] == ids[2], ids[0] == ids[1]) == (True, False)


async def test_a_limit_by_tenant_is_counted_by_the_tenant_of_a_job(app: Headway) -> None:
    @app.task(name="t", fair_by="account", limits=[Limit(concurrency=1, by="tenant")])
    def work(account: str, tenant: str = "not this one") -> None: ...

    await work.aenqueue("acme")
    await work.aenqueue("acme", tenant="other")
    await work.using(tenant="zeta").aenqueue("acme")
    assert sorted(await running(app)) == [("t", "acme"), ("t", "zeta")]


async def test_a_task_with_an_equals_sign_in_its_name_is_limited_like_any_other(app: Headway) -> None:
    @app.task(name="a=b", limits=[Limit(concurrency=1, by="x"), Limit(concurrency=5)])
    def work(x: int) -> None: ...

    await app.aenqueue_many([work.call(1), work.call(1), work.call(2)])
    assert len(await running(app)) == 2


async def test_a_task_named_like_a_pause_is_limited_and_not_paused(app: Headway) -> None:
    @app.task(name=f"{PAUSE}task:x", limits=[Limit(concurrency=1)])
    def work() -> None: ...

    first, second = [await work.aenqueue() for _ in range(2)]
    assert len(await running(app)) == 1
    assert await first.awhy() == []
    assert "limit" in [reason.code for reason in await second.awhy()]
    assert "paused" not in [reason.code for reason in await second.awhy()]


async def test_a_task_whose_name_looks_like_a_pattern_limits_itself_alone(app: Headway) -> None:
    @app.task(name="t[ab]*", limits=[Limit(concurrency=1)])
    def odd() -> None: ...

    @app.task(name="ta")
    def plain() -> None: ...

    await app.aenqueue_many([odd.call(), odd.call(), plain.call(), plain.call()])
    assert sorted(await running(app)) == [("t[ab]*", None), ("ta", None), ("ta", None)]


async def test_limits_of_the_policy_are_bound_to_new_jobs(app: Headway) -> None:
    limits = {
        "github": LimitRule(concurrency=1, by="account", tasks=("reports.*",)),
        "all": LimitRule(concurrency=9),
        "each": LimitRule(concurrency=5, by="tenant"),
    }
    await apply(app, replace(BUILT_IN, limits=limits))

    @app.task(name=EXPORT)
    def export(account: int) -> None: ...

    @app.task(name="reports.other")
    def other(user: int) -> None: ...  # It has no such parameter, so that limit says nothing of it.

    @app.task(name="mail.send")
    def send(account: int) -> None: ...

    jobs = [await export.aenqueue(7), await other.aenqueue(7), await send.aenqueue(7), await export.aenqueue(7)]
    assert [(await stored(app, job.id)).limits for job in jobs] == [("github=7",), (), (), ("github=7",)]
    assert [task for task, _ in await running(app)] == [EXPORT, "reports.other", "mail.send"]


async def test_a_policy_overrides_the_limit_of_a_task_by_its_name(app: Headway) -> None:
    @app.task(name="t", limits=[Limit(concurrency=1, by="a")])
    def work(a: int) -> None: ...

    await app.aenqueue_many([work.call(1) for _ in range(5)])
    assert len(await running(app)) == 1
    await apply(app, replace(BUILT_IN, limits={"t:concurrency:a": LimitRule(concurrency=3, by="a")}))
    assert len(await running(app)) == 2


# ---------------------------------------------------------------------- whose word counts


@pytest.mark.parametrize(
    "decorator, rule, call, expected",
    [
        pytest.param({}, TaskRule(), {}, ("medium", 600_000, 3, None), id="the lane's"),
        pytest.param(
            {"priority": "high", "timeout": 7, "max_retries": 4, "duration": "quick"},
            TaskRule(),
            {},
            ("high", 7_000, 4, "quick"),
            id="the decorator's over the lane's",
        ),
        pytest.param(
            {"priority": "high", "timeout": 7, "max_retries": 4, "duration": "quick"},
            TaskRule("low", "long", 60_000, 0),
            {},
            ("low", 60_000, 0, "long"),
            id="the policy's over the decorator's",
        ),
        pytest.param(
            {"priority": "high", "timeout": 7, "max_retries": 4, "duration": "quick"},
            TaskRule("low", "long", 60_000, 0),
            {"priority": "medium", "timeout": 9, "max_retries": 2, "duration": "default"},
            ("medium", 9_000, 2, "default"),
            id="the call's over all",
        ),
        pytest.param(
            {"timeout": 7},
            TaskRule("low"),
            {"max_retries": 1},
            ("low", 7_000, 1, None),
            id="each option by itself",
        ),
        pytest.param({}, TaskRule("high"), {}, ("high", 300_000, 5, None), id="the lane's that the policy chose"),
    ],
)
async def test_a_call_goes_over_the_policy_and_that_over_the_decorator(
    app: Headway, decorator: dict[str, Any], rule: TaskRule, call: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    # R5.37
    await apply(app, replace(LADDER, tasks={EXPORT: rule, "another": TaskRule("low")}))

    def work() -> None: ...

    task = app.task(name=EXPORT, **decorator)(work)
    job = await task.using(**call).aenqueue()
    record = await stored(app, job.id)
    assert (record.lane, record.timeout_ms, record.max_retries, record.rung) == expected


async def test_a_call_that_was_described_before_the_policy_came_goes_by_it(app: Headway) -> None:
    @app.task(name=EXPORT)
    def work(number: int) -> int:
        return number

    described = [work.call(1), work.using(priority="high").call(2)]
    await apply(app, replace(BUILT_IN, tasks={EXPORT: TaskRule("low", timeout_ms=1_234)}))
    jobs = await app.aenqueue_many(described)
    records = [await stored(app, job.id) for job in jobs]
    assert [(record.lane, record.timeout_ms) for record in records] == [("low", 1_234), ("high", 1_234)]
    assert [job.id for job in jobs] == [call.new.job_id for call in described]
    assert [read_payload(record.payload) for record in records] == [{"number": 1}, {"number": 2}]


@pytest.mark.parametrize("duration", ["fast", "medium", "slow", "default", None])
async def test_without_a_ladder_the_usual_durations_are_known(app: Headway, duration: str | None) -> None:
    # R3.2, R3.3
    def work() -> None: ...

    job = await app.task(duration=duration)(work).aenqueue()
    assert (await stored(app, job.id)).rung == duration


@pytest.mark.parametrize("duration, known", [("quick", True), ("long", True), ("default", True), ("slow", False)])
async def test_durations_are_those_of_the_ladder(app: Headway, duration: str, known: bool) -> None:
    await apply(app, LADDER)

    @app.task(name=EXPORT)
    def work() -> None: ...

    if known:
        job = await work.using(duration=duration).aenqueue()
        assert (await stored(app, job.id)).rung == duration
    else:
        with pytest.raises(ConfigError, match=r"no duration 'slow' on the ladder.*durations: quick, long, default"):
            await work.using(duration=duration).aenqueue()


async def test_an_interactive_task_is_never_queued(app: Headway) -> None:
    # R3.4, R3.30
    @app.task(name="shell", duration="interactive", context=True)
    async def shell(ctx: Context) -> None: ...

    with pytest.raises(ConfigError, match="open a session"):
        await shell.aenqueue()


# ---------------------------------------------------------------------- lanes that the store knows


async def test_a_lane_is_unknown_only_once_the_stores_policy_is_known(app: Headway) -> None:
    @app.task(name=EXPORT, priority="urgent")
    def work() -> None: ...

    with pytest.raises(ConfigError, match=r"no lane 'urgent' in the policy .*lanes: high, medium, low"):
        await work.aenqueue()
    assert await app.ajobs() == []
    work.using(priority="other")  # The store's policy may change before anything is enqueued.
    with pytest.raises(ConfigError, match="no lane 'other'"):
        await work.using(priority="other").aenqueue()
    assert await app.ajobs() == []


async def test_a_lane_of_the_stores_policy_is_known_to_a_client_that_starts_later(app: Headway) -> None:
    await apply(app, URGENT)

    @app.task(name=EXPORT, priority="urgent")
    def work() -> None: ...

    job = await work.aenqueue()
    record = await stored(app, job.id)
    assert (record.lane, record.max_retries, record.timeout_ms) == ("urgent", 1, 5_000)


async def test_a_lane_that_is_added_is_usable_without_a_restart(url: str) -> None:
    client, operator = Headway(url), Headway(url)

    @client.task(name=EXPORT)
    def work() -> None: ...

    async with client, operator:
        await work.aenqueue()
        await apply(operator, URGENT)
        await work.aenqueue()
        job = await work.using(priority="urgent").aenqueue()
        assert (await stored(client, job.id)).lane == "urgent"
        await apply(operator, BUILT_IN)
        await work.aenqueue()
        with pytest.raises(ConfigError, match="no lane 'urgent'"):
            await work.using(priority="urgent").aenqueue()


async def test_a_client_that_asks_for_nothing_but_a_new_lane_gets_it(url: str) -> None:
    client, operator = Headway(url), Headway(url)

    @client.task(name=EXPORT)
    def work() -> None: ...

    async with client, operator:
        await work.aenqueue()
        await apply(operator, URGENT)
        job = await work.using(priority="urgent").aenqueue()
        assert (await stored(client, job.id)).lane == "urgent"


async def test_a_task_whose_lane_was_removed_is_refused_and_the_others_go_on(url: str) -> None:
    client, operator = Headway(url), Headway(url)
    async with client, operator:
        await apply(operator, URGENT)

        @client.task(name=EXPORT, priority="urgent")
        def work() -> None: ...

        @client.task(name="other")
        def other() -> None: ...

        await work.aenqueue()
        await apply(operator, BUILT_IN)
        with pytest.raises(ConfigError, match="no lane 'urgent'"):
            await work.aenqueue()
        await other.aenqueue()
        assert len(await client.ajobs()) == 2


# ---------------------------------------------------------------------- pausing


async def test_what_is_paused_is_told_and_resumed(app: Headway) -> None:
    @app.task(name=EXPORT)
    def work() -> None: ...

    assert await app.apaused() == PauseSet()
    await app.apause(lane="low")
    await app.apause(task=work)
    await app.apause(task="mail.send", tenant="acme")
    assert await app.apaused() == PauseSet(lanes=("low",), tasks=("mail.send", EXPORT), tenants=("acme",))
    await app.aresume(task=EXPORT)
    await app.aresume(tenant="acme")
    assert await app.apaused() == PauseSet(lanes=("low",), tasks=("mail.send",))
    await app.apause()
    assert (await app.apaused()).everything
    await app.aresume()
    assert await app.apaused() == PauseSet()


async def test_a_pause_holds_jobs_back_until_it_ends(app: Headway) -> None:
    @app.task(name=EXPORT)
    def work() -> None: ...

    await app.apause(task=work)
    job = await work.aenqueue()
    assert await running(app) == []
    assert "paused" in [reason.code for reason in await job.awhy()]
    await app.aresume(task=work)
    assert len(await running(app)) == 1


def test_the_blocking_verbs_pause_and_resume_too() -> None:
    with Headway("memory://") as app:
        app.pause(lane="low", tenant="acme")
        assert app.paused() == PauseSet(lanes=("low",), tenants=("acme",))
        app.resume(lane="low")
        assert app.paused() == PauseSet(tenants=("acme",))
        app.pause()
        app.resume()
        assert app.paused() == PauseSet()


# ---------------------------------------------------------------------- why


def test_a_job_tells_why_it_waits_and_then_what_it_had_waited_for(headway: Testbed) -> None:
    @headway.app.task(name=EXPORT)
    def work() -> None: ...

    job = work.enqueue()
    headway.app.pause(lane="medium")
    assert [(reason.code, reason.text) for reason in job.why()] == [
        ("paused", "lane medium is paused"),
        ("no_worker", "no worker is running"),
    ]
    assert job.why()[1].facts == {"workers": 0}
    assert job.waited() == {}
    headway.app.resume()
    headway.clock.advance(seconds=90)
    assert [reason.code for reason in job.why()] == ["no_worker"]
    assert headway.drain().completed == [job]
    assert job.why() == []
    assert job.waited() == {"no_worker": 90.0}


async def test_the_async_verbs_tell_the_same(headway: Testbed) -> None:
    @headway.app.task(name=EXPORT)
    def work() -> None: ...

    job = await work.using(delay=60, priority="low").aenqueue()
    assert [reason.code for reason in await job.awhy()] == ["scheduled", "no_worker"]
    assert await job.aeffective_priority() == "low"
    headway.clock.advance(seconds=65)
    await headway.adrain()
    assert await job.awhy() == []
    assert await job.awaited() == {}  # It did not wait for a slot: it was only due when the worker looked.


@pytest.mark.parametrize(
    "lane, waited, expected",
    [
        ("low", 599, "low"),
        ("low", 600, "medium"),
        ("low", 1_199, "medium"),
        ("low", 1_200, "high"),
        ("medium", 1_199, "medium"),
        ("medium", 1_200, "high"),
        ("high", 9_999, "high"),
    ],
)
def test_the_effective_priority_follows_the_age_of_a_job(
    headway: Testbed, lane: str, waited: int, expected: str
) -> None:
    # R5.10, R5.62, R5.63, R5.6, R5.7
    job = headway.app.task(lambda: None).using(priority=lane).enqueue()
    headway.clock.advance(seconds=waited)
    assert job.effective_priority() == expected
    assert job.record().lane == lane
    headway.drain()
    headway.clock.advance(seconds=9_999)
    assert job.effective_priority() == expected  # As it was when it started.


def test_a_job_does_not_age_while_it_is_delayed(headway: Testbed) -> None:
    job = headway.app.task(lambda: None).using(priority="low", delay=1_000).enqueue()
    headway.clock.advance(seconds=999)
    assert job.effective_priority() == "low"


def test_what_is_said_goes_by_the_stores_policy(headway: Testbed) -> None:
    quick = replace(BUILT_IN.lanes["low"], promote_after_ms=(1_000,))
    job = headway.app.task(lambda: None).using(priority="low").enqueue()
    headway.clock.advance(seconds=1)
    assert job.effective_priority() == "low"
    headway.app.portal.run(apply(headway.app, replace(BUILT_IN, lanes={**BUILT_IN.lanes, "low": quick})))
    assert job.effective_priority() == "medium"


def test_of_a_job_that_is_not_there_nothing_can_be_said(headway: Testbed) -> None:
    job = headway.app.job("01900000-0000-7000-8000-000000000000")
    for verb in (job.why, job.waited, job.effective_priority):
        with pytest.raises(JobNotFound):
            verb()
    transient = headway.app.task(persist=False)(lambda: None).enqueue()
    for verb in (transient.why, transient.waited, transient.effective_priority):
        with pytest.raises(NotStored):
            verb()


# ---------------------------------------------------------------------- the policy file


@pytest.fixture
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text("crash_limit = 5\n")
    monkeypatch.setenv("HEADWAY_POLICY", str(path))
    return path


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


async def versions(store: Store) -> list[tuple[int, int]]:
    return [(applied.version, applied.policy.crash_limit) for applied in await history(store)]


async def start_and_stop(url: str) -> tuple[list[tuple[int, int]], int]:
    """Run a worker with the file that HEADWAY_POLICY names. Return the versions and the worker's crash limit."""
    app = Headway(url)
    async with app, Worker(app, slots=1):
        found = await versions(await app.client.store())
        limit = app.policy.crash_limit
    return found, limit


@pytest.mark.usefixtures("policy_file")
async def test_a_policy_file_comes_into_force_when_a_worker_starts(url: str) -> None:
    app = Headway(url)
    assert app.policy.crash_limit == 5  # Known at once, and applied by no process yet.
    async with app:
        assert await current_version(await app.client.store()) == 0
    assert await start_and_stop(url) == ([(1, 5)], 5)
    async with Headway(url) as late:
        [applied] = await history(await late.client.store())
        assert applied.note.endswith("policy.toml")


@pytest.mark.usefixtures("policy_file")
async def test_the_same_file_is_not_applied_again(url: str) -> None:
    await start_and_stop(url)
    assert await start_and_stop(url) == ([(1, 5)], 5)


@pytest.mark.usefixtures("policy_file")
async def test_a_change_made_by_hand_survives_a_restart_with_the_same_file(url: str) -> None:
    await start_and_stop(url)
    async with Headway(url) as operator:
        await apply(operator, replace(BUILT_IN, crash_limit=7))
    assert await start_and_stop(url) == ([(1, 5), (2, 7)], 7)


async def test_a_file_that_has_changed_comes_into_force_over_a_change_made_by_hand(url: str, policy_file: Path) -> None:
    await start_and_stop(url)
    async with Headway(url) as operator:
        await apply(operator, replace(BUILT_IN, crash_limit=7))
    rewrite(policy_file, "crash_limit = 9\n")
    assert await start_and_stop(url) == ([(1, 5), (2, 7), (3, 9)], 9)
    rewrite(policy_file, "# The same, written otherwise.\ncrash_limit = 0x9\n")
    assert await start_and_stop(url) == ([(1, 5), (2, 7), (3, 9)], 9)


def test_a_policy_file_that_cannot_be_read_is_told_at_once(policy_file: Path) -> None:
    policy_file.write_text("crash_limt = 5\n")
    with pytest.raises(PolicyError, match="did you mean 'crash_limit'"):
        Headway("memory://")


def test_the_lanes_of_a_policy_file_are_known_before_any_worker_has_applied_it(policy_file: Path) -> None:
    policy_file.write_text("[lanes.urgent]\nlevel = 0\n")
    with Headway("memory://") as app:
        assert app.task(name="one", priority="urgent")(lambda: None).enqueue().record().lane == "urgent"
        with pytest.raises(ConfigError, match="no lane 'urgnt' in the policy; did you mean 'urgent'"):
            app.task(name="other", priority="urgnt")(lambda: None).enqueue()


async def test_a_file_is_applied_once_however_many_processes_start_with_it() -> None:
    store = MemoryStore(clock=ManualClock())
    mine, theirs = replace(BUILT_IN, crash_limit=5), replace(BUILT_IN, reserve=Reserve(slots=2))
    for _ in range(3):
        await apply_file(store, mine, "mine.toml", now_at=1)
    assert [(a.version, a.note) for a in await history(store)] == [(1, "from mine.toml")]
    await apply_file(store, theirs, "theirs.toml", now_at=2)
    await apply_file(store, mine, "mine.toml", now_at=3)
    assert [(a.version, a.note) for a in await history(store)] == [
        (1, "from mine.toml"),
        (2, "from theirs.toml"),
        (3, "from mine.toml"),
    ]
