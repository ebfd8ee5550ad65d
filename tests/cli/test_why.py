"""``headway why``: the reasons why a job waits or has waited, with numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from headway.core.job import NewJob
from headway.core.lease import Lease
from headway.core.policy.document import LimitRule, Policy
from headway.policy_store.rule_documents import change_costs
from headway.policy_store.versions import apply_policy
from headway.stores.base import Store
from headway.stores.open import open_store
from tests.cli.command import Cli
from tests.conformance.builders import a_job, claim, end, register

NOOP = "demo.noop"
OFFERS = (f"task:{NOOP}",)


def submit(cli: Cli, *options: str) -> str:
    return cli.call("submit", NOOP, *options).out.strip()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class World:
    """The store of a folder, with the actions of other clients between two commands."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli

    def do(self, act: Callable[[Store], Awaitable[object]], *, seconds_ago: int = 0) -> None:
        async def run() -> None:
            url = f"sqlite:///{self.cli.folder}/headway.db"
            store = open_store(url, "default", clock=lambda: now_ms() - seconds_ago * 1_000)
            await store.open()
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(run())

    def submit_earlier(self, job: NewJob, *, seconds: int) -> str:
        self.do(lambda store: store.submit([job]), seconds_ago=seconds)
        return job.job_id

    def codes(self, job_id: str) -> list[str]:
        return [reason["code"] for reason in self.cli.call("why", job_id, "--json").json["reasons"]]


@pytest.fixture
def world(cli: Cli) -> World:
    return World(cli)


def test_a_job_without_a_worker_says_so(cli: Cli) -> None:
    job_id = submit(cli)
    ran = cli.run("why", job_id)
    assert ran.out.startswith("demo.noop in lane medium has waited for ")
    assert "no_worker" in ran.out
    assert "no worker is running" in ran.out
    document = cli.call("why", job_id, "--json").json
    assert document == {
        "id": job_id,
        "status": "queued",
        "lane": "medium",
        "effective_priority": "medium",
        "reasons": [{"code": "no_worker", "text": "no worker is running", "workers": 0}],
        "waited_s": {},
        "passed_over": 0,
    }


def test_how_often_a_job_was_passed_over_is_told(world: World) -> None:
    # R3.92
    job_id = submit(world.cli, "--needs", "gpu")
    later = submit(world.cli)
    world.do(lambda store: register(store, "w1", offers=OFFERS))
    assert "Passed over" not in world.cli.call("why", job_id).out
    world.do(lambda store: claim(store, offers=OFFERS))
    assert world.cli.call("status", later, "--json").json["status"] == "executing"
    assert "Passed over: 1 later jobs of its lane and tenant have started." in world.cli.call("why", job_id).out
    assert world.cli.call("why", job_id, "--json").json["passed_over"] == 1


def test_all_reasons_are_told_the_binding_one_first(cli: Cli) -> None:
    job_id = submit(cli, "--priority", "low", "--delay", "3600", "--tenant", "acme")
    cli.call("pause", "--lane", "low")
    cli.call("pause", "--tenant", "acme")
    told = cli.call("why", job_id).out
    assert "demo.noop in lane low does not wait for a slot yet." in told
    lines = [line for line in told.splitlines() if line.strip()[:1].isdigit()]
    assert [line.split()[1] for line in lines] == ["scheduled", "paused", "paused", "no_worker"]
    assert "not due for 60 min" in lines[0]
    assert "lane low is paused" in lines[1]
    assert "tenant acme is paused" in lines[2]
    reasons = cli.call("why", job_id, "--json").json["reasons"]
    assert 3_500 < reasons[0]["in_s"] <= 3_600
    assert reasons[0]["due_at"] == cli.call("status", job_id, "--json").json["due_at"]
    assert [reason.get("paused") for reason in reasons] == [None, "lane low", "tenant acme", None]


def test_a_job_that_nobody_knows_or_can_serve(world: World) -> None:
    job_id = submit(world.cli, "--needs", "gpu")
    world.do(lambda store: register(store, "w1", offers=("task:other",)))
    assert world.codes(job_id) == ["unroutable", "unservable"]
    told = world.cli.call("why", job_id).out
    assert "no live worker knows the task demo.noop (1 worker asked)" in told
    assert "no live worker offers gpu (1 worker asked)" in told


def test_a_job_that_nothing_holds_back(world: World) -> None:
    job_id = submit(world.cli)
    world.do(lambda store: register(store, "w1", offers=OFFERS))
    assert world.codes(job_id) == []
    assert "Nothing holds it back: a worker is about to take it." in world.cli.call("why", job_id).out


def test_a_job_behind_others_tells_how_many_and_when_a_slot_frees(world: World) -> None:
    running = submit(world.cli)

    async def fill(store: Store) -> None:
        await change_costs(store, lambda _: {NOOP: 60_000_000})
        await register(store, "w1", slots=1, offers=OFFERS)
        assert [lease.job_id for lease in await claim(store, "w1", offers=OFFERS)] == [running]

    world.do(fill)
    submit(world.cli)
    job_id = submit(world.cli)
    submit(world.cli, "--priority", "high")
    assert world.codes(job_id) == ["slots_full", "lane", "ahead"]
    told = world.cli.call("why", job_id).out
    assert "all 1 slots are busy; next " in told
    assert "better lanes go first: 1 job in high" in told
    assert "1 job came before it" in told
    assert world.codes(running) == []


def test_a_job_whose_limit_is_full_tells_which(world: World) -> None:
    first = submit(world.cli)

    async def limit(store: Store) -> None:
        rules = {"one_at_a_time": LimitRule(concurrency=1, tasks=("demo.*",))}
        await apply_policy(store, Policy(limits=rules), now_at=now_ms())
        await register(store, "w1", offers=OFFERS)
        assert [lease.job_id for lease in await claim(store, "w1", offers=OFFERS)] == [first]

    world.do(limit)
    job_id = submit(world.cli)
    reasons = world.cli.call("why", job_id, "--json").json["reasons"]
    assert reasons == [
        {
            "code": "limit",
            "text": "one_at_a_time runs 1 of 1",
            "limit": "one_at_a_time",
            "used": 1,
            "most": 1,
            "next_frees_s": None,
        }
    ]
    assert "limit: one_at_a_time runs 1 of 1" in world.cli.call("status", job_id).out


def test_a_job_that_has_risen_says_to_which_lane(world: World) -> None:
    # R5.10
    job_id = world.submit_earlier(a_job(task=NOOP, lane="low"), seconds=1_300)
    assert "demo.noop in lane low, risen to high has waited for 22 min." in world.cli.call("why", job_id).out
    document = world.cli.call("why", job_id, "--json").json
    assert (document["lane"], document["effective_priority"]) == ("low", "high")
    status = world.cli.call("status", job_id)
    assert "low, risen to high" in status.out
    assert "no_worker: no worker is running" in status.out


def test_a_job_that_runs_or_has_ended_tells_what_it_had_waited_for(world: World) -> None:
    job_id = world.submit_earlier(a_job(task=NOOP), seconds=600)
    leases: list[Lease] = []

    async def start(store: Store) -> None:
        await register(store, "w1", offers=OFFERS)
        leases.extend(await claim(store, "w1", offers=OFFERS))

    world.do(start)
    told = world.cli.run("why", job_id).out
    assert "demo.noop is executing; it does not wait." in told
    assert "Before it started it waited: 10 min no_worker." in told
    world.do(lambda store: end(store, leases[0]))
    document = world.cli.call("why", job_id, "--json").json
    assert (document["status"], document["reasons"]) == ("completed", [])
    assert document["waited_s"]["no_worker"] == pytest.approx(600, abs=30)
    assert world.cli.call("status", job_id, "--json").json["waited_s"] == document["waited_s"]


@pytest.mark.parametrize(
    "words, code, message",
    [
        pytest.param(["why", "nonsense"], 1, "no job nonsense in the store", id="no such job"),
        pytest.param(["why"], 2, "ID", id="no id"),
    ],
)
def test_a_wrong_call_gets_one_clear_line(cli: Cli, words: list[str], code: int, message: str) -> None:
    submit(cli)
    ran = cli.call(*words, code=code)
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_text_from_elsewhere_is_not_obeyed(cli: Cli) -> None:
    nasty = "\x1b]0;owned\x07[red]\u202e"
    job_id = submit(cli, "--tenant", nasty)
    paused = cli.run("pause", "--tenant", nasty)
    told = cli.run("why", job_id)
    for out in (paused.out, told.out, cli.call("resume").out):
        assert out.replace("\n", "").isprintable()
    assert "[red]" in told.out
