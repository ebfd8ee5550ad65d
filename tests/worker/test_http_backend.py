"""The HTTP backend of a worker: its requests, their repetition, and its trust in replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headway.client.codec import read_payload
from headway.core.errors import JobError, ServerRefused, ServerUnavailable
from headway.core.job import PAYLOAD_VERSION, JobId
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, LimitRule, Policy, Reserve
from headway.core.policy.retry import Crashed, Ending, Raised, Released, Returned, Snoozed, Stopped, TimedOut, Unknown
from headway.core.policy.writer import policy_data
from headway.core.worker import WorkerInfo, WorkerState
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.policy_store.catalogue import CronDocument
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import LEASE_CHANNEL, Heartbeat, Progress
from headway.worker.backend.base import AppManifest, JobSource, LeaseTimes
from headway.worker.backend.http import HttpBackend
from headway.worker.backend.http_job_source import BODY_MAX
from tests.conformance.builders import a_worker
from tests.worker.stub_server import StubReply, StubRequest, StubServer, a_task, problem

PACE = LeaseTimes(heartbeat=30, dead_after=90, confirm=10, grace=12)
LOST = JobError("ValueError", "odd", "the trace", retriable=False)


def nothing(_: StubRequest) -> StubReply:
    return StubReply({})


class Script:
    """A script of replies: short polls get the next of a list, and long polls are held until there are tasks."""

    def __init__(self, *answers: StubReply) -> None:
        self.answers = list(answers)
        self.standing: list[tuple[asyncio.Event, dict[str, Any]]] = []

    def __call__(self, asked: StubRequest) -> StubReply:
        if asked.body.get("wait_seconds"):
            answer: dict[str, Any] = {}
            ready = asyncio.Event()
            self.standing.append((ready, answer))
            return StubReply(answer, until=ready)
        return self.answers.pop(0) if self.answers else StubReply({})

    def give(self, *tasks: dict[str, Any], **facts: Any) -> None:
        """Reply to the latest long poll."""
        ready, answer = self.standing[-1]
        answer.update(tasks=list(tasks), **facts)
        ready.set()


def a_post(stub: StubServer, policy: Policy = BUILT_IN) -> HttpBackend:
    return HttpBackend(stub.address, "token", CurrentPolicy(policy), mark=PAYLOAD_VERSION)


Talk = Callable[[JobSource, StubServer], Coroutine[Any, Any, None]]


async def with_feed(answer: Callable[[StubRequest], StubReply], talk: Talk, policy: Policy = BUILT_IN) -> None:
    async with StubServer(answer) as stub:
        post = a_post(stub, policy)
        job_source = post.job_source(a_worker("w1"), PACE, offset=0.0)
        try:
            await talk(job_source, stub)
        finally:
            await job_source.close()
            await post.close()


async def exchange(
    job_source: JobSource, finished: Sequence[FinishedRun] = (), *, free: int, below: int
) -> ClaimResult:
    return await job_source.exchange(finished, (), free=free, free_below=below)


async def arrived(job_source: JobSource, *, free: int, below: int) -> Sequence[Lease]:
    assert await job_source.subscribe().wait(5.0) is not None
    return (await exchange(job_source, free=free, below=below)).leases


def done(number: int, result: bytes | None = None) -> FinishedRun:
    token = number.to_bytes(16)
    lease = Lease(JobId(f"job-{number}"), 0, token, "t", b"", "low", None, None, 1, 1, 0, 0, 1, 1, None, 0)
    return FinishedRun(lease, Returned(result), 0.5)


async def test_a_standing_poll_brings_jobs_as_they_come() -> None:
    # R5.1
    script = Script()

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        assert not (await exchange(job_source, free=5, below=4)).leases
        await stub.until(lambda: script.standing)
        (asked,) = stub.polls()
        assert (asked["available_capacity"], asked["below"], asked["wait_seconds"]) == (5, 4, PACE.confirm / 2)
        script.give(a_task(1, lease={"seq": 9, "crashes": 1, "budget_ms": 5_000, "retry": {"backoff": "linear"}}))
        (lease,) = await arrived(job_source, free=5, below=4)
        assert (lease.job_id, lease.token, lease.task, lease.attempts) == ("job-1", bytes(15) + b"\1", "echo", 1)
        assert (lease.seq, lease.crashes, lease.limit_ms, lease.timeout_ms) == (9, 1, 5_000, 30_000)
        assert (lease.worker_id, lease.retry and lease.retry.backoff) == ("w1", "linear")
        assert read_payload(lease.payload) == {"value": 1}
        # For the slots that are left another one waits already.
        await stub.until(lambda: len(stub.polls()) == 2)
        assert (stub.polls()[1]["available_capacity"], stub.polls()[1]["below"]) == (4, 3)
        assert stub.polls()[1]["claim_id"] != asked["claim_id"]

    await with_feed(script, talk)


async def test_what_ends_beside_a_standing_poll_for_all_lanes_is_only_handed_in() -> None:
    script = Script()

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        await exchange(job_source, free=3, below=2)
        await exchange(job_source, [done(1)], free=4, below=3)
        results = [asked for asked in stub.polls() if asked.get("results")]
        assert [(asked["available_capacity"], "takes_over" in asked) for asked in results] == [(0, False)]

    await with_feed(script, talk)


@pytest.mark.parametrize("rule, below", [("cap", 2), ("leave_free", 1)])
async def test_a_standing_poll_for_the_reserve_is_taken_over_for_other_slots_than_its_own(
    rule: str, below: int
) -> None:
    policy = replace(BUILT_IN, reserve=replace(BUILT_IN.reserve, rule=rule))
    script = Script(StubReply({"tasks": [a_task(3)]}))

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        await exchange(job_source, free=1, below=0)
        await stub.until(lambda: script.standing)
        fed = await exchange(job_source, [done(1), done(2)], free=3, below=2)
        assert [lease.job_id for lease in fed.leases] == ["job-3"]
        asked = stub.polls()[-1]
        assert (asked["available_capacity"], asked["below"], asked["takes_over"]) == (2, below, True)
        assert [result["task_id"] for result in asked["results"]] == ["job-1", "job-2"]
        # It brings a job all the same: that has a slot too.
        script.give(a_task(4, priority="high"))
        (lease,) = await arrived(job_source, free=2, below=1)
        assert lease.job_id == "job-4"

    await with_feed(script, talk, policy)


async def test_short_jobs_beside_a_reserve_cost_no_standing_polls() -> None:
    script = Script(StubReply({"tasks": [a_task(1)]}), StubReply({"tasks": [a_task(2)]}))

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        for number in range(2):
            await exchange(job_source, [done(number)], free=2, below=1)
        asked = [(poll["available_capacity"], poll["below"], "wait_seconds" in poll) for poll in stub.polls()]
        assert asked == [(2, 1, False), (2, 1, False)]
        await stub.until(lambda: script.standing)  # A moment later one stands for the reserve after all.
        assert (stub.polls()[-1]["available_capacity"], stub.polls()[-1]["below"]) == (1, 0)

    await with_feed(script, talk)


async def test_with_no_slot_free_nobody_waits_at_the_server() -> None:
    async def talk(job_source: JobSource, stub: StubServer) -> None:
        await exchange(job_source, free=0, below=0)
        await exchange(job_source, [done(1)], free=0, below=0)
        assert ["wait_seconds" in asked for asked in stub.polls()] == [False]

    await with_feed(nothing, talk)


async def test_a_lost_reply_is_asked_for_again_with_the_same_claim() -> None:
    # H5, N4, R1.41
    script = Script(StubReply(cut=True), problem(503, "store_unavailable"), StubReply({"tasks": [a_task(2)]}))

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        for _ in range(2):
            with pytest.raises(ServerUnavailable):
                await exchange(job_source, [done(1)], free=1, below=1)
        fed = await exchange(job_source, [done(1)], free=1, below=1)
        assert [lease.job_id for lease in fed.leases] == ["job-2"]
        assert len({asked["claim_id"] for asked in stub.polls()}) == 1
        assert all(len(asked["results"]) == 1 for asked in stub.polls())

    await with_feed(script, talk)


async def test_a_standing_poll_survives_an_outage_with_the_same_claim(caplog: pytest.LogCaptureFixture) -> None:
    # R1.41
    caplog.set_level(logging.WARNING, "headway.worker")
    answers = [StubReply(cut=True), problem(500, "internal"), StubReply({"tasks": [a_task(1)]})]

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        await exchange(job_source, free=1, below=1)
        (lease,) = await arrived(job_source, free=1, below=1)
        assert lease.job_id == "job-1"
        assert len({asked["claim_id"] for asked in stub.polls()}) == 1

    await with_feed(lambda _: answers.pop(0) if answers else StubReply({}), talk)
    assert [message.partition(" ")[0] for message in caplog.messages] == ["store.unavailable", "store.recovered"]


async def test_a_fence_that_is_none_is_not_believed() -> None:
    async def talk(job_source: JobSource, _: StubServer) -> None:
        for _attempt in range(2):
            with pytest.raises(ServerUnavailable, match="fence"):
                await exchange(job_source, [done(1)], free=1, below=1)

    await with_feed(lambda _: StubReply({"tasks": [a_task(1, fence="abcd")]}), talk)


async def test_a_worker_that_was_taken_for_dead_hears_so_and_asks_no_more() -> None:
    # R5.58
    async def talk(job_source: JobSource, stub: StubServer) -> None:
        fed = await exchange(job_source, [done(1)], free=1, below=1)
        assert (fed.state, list(fed.refused)) == (WorkerState.DEAD, [("job-1", "lost")])
        await exchange(job_source, [done(2)], free=2, below=2)
        assert len(stub.asked) == 1

    await with_feed(lambda _: problem(409, "worker_unknown"), talk)


async def test_refused_results_are_told() -> None:
    # R5.57
    script = Script(StubReply({"refused": [{"task_id": "job-1", "code": "lease_lost"}]}))

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        fed = await exchange(job_source, [done(1)], free=0, below=0)
        assert list(fed.refused) == [("job-1", "lost")]

    await with_feed(script, talk)


async def test_a_drain_gives_back_what_still_arrives() -> None:
    # R5.19, R1.42
    script = Script()

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        await exchange(job_source, free=2, below=2)
        await stub.until(lambda: script.standing)
        job_source.leave()
        job_source.leave()
        await stub.until(lambda: any(asked.path.endswith("/drain") for asked in stub.asked))
        script.give(a_task(1), state="draining")
        await stub.until(lambda: any(asked.path.endswith("/result") for asked in stub.asked))
        (given,) = stub.asked[-1].body["results"]
        assert (given["task_id"], given["status"], given["reason"]) == ("job-1", "released", "drained")
        assert not (await exchange(job_source, [done(2)], free=0, below=0)).leases
        assert [asked.path.rpartition("/")[2] for asked in stub.asked].count("drain") == 1

    await with_feed(script, talk)


async def test_a_result_that_the_server_cannot_take_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "headway.worker")

    def refusing(asked: StubRequest) -> StubReply:
        bad = [one for one in asked.body.get("results", ()) if one["task_id"] == "job-2" and "result" in one]
        return problem(413, "too_large") if bad else StubReply({})

    async def talk(job_source: JobSource, stub: StubServer) -> None:
        large = done(2, PAYLOAD_VERSION + b'"much"')
        fed = await exchange(job_source, [done(1), large, done(3)], free=0, below=0)
        assert not fed.refused
        handed = [asked.body["results"] for asked in stub.asked]
        assert [[one["task_id"] for one in batch] for batch in handed] == [
            ["job-1", "job-2", "job-3"],
            ["job-1"],
            ["job-2"],
            ["job-2"],
            ["job-3"],
        ]
        assert (handed[3][0]["status"], "result" in handed[3][0]) == ("completed", False)
        assert handed[3][0]["result_error"]

    await with_feed(refusing, talk)
    assert [message.split()[0] for message in caplog.messages] == ["job.result_refused"]


async def test_large_results_go_in_several_bodies() -> None:
    async def talk(job_source: JobSource, stub: StubServer) -> None:
        text = b'"%s"' % (b"x" * (BODY_MAX // 3))
        await exchange(job_source, [done(2, PAYLOAD_VERSION + text)] * 4, free=0, below=0)
        assert [len(asked.body["results"]) for asked in stub.asked] == [2, 2]

    await with_feed(nothing, talk)


@pytest.mark.parametrize(
    "ending, said",
    [
        (Returned(PAYLOAD_VERSION + b'{"a":[1]}'), {"status": "completed", "result": {"a": [1]}}),
        (Returned(None), {"status": "completed"}),
        (Returned(None, "a set"), {"status": "completed", "result_error": "a set"}),
        (
            Raised(LOST, after_ms=1_500),
            {
                "status": "failed",
                "retry_after_seconds": 1.5,
                "error": {"message": "odd", "type": "ValueError", "traceback": "the trace", "retriable": False},
            },
        ),
        (Snoozed(2_000, "later"), {"status": "snoozed", "retry_after_seconds": 2.0, "reason": "later"}),
        (TimedOut(JobError("T", "t")), {"status": "timed_out", "error": {"message": "t", "type": "T"}}),
        (Stopped("told"), {"status": "cancelled", "reason": "told"}),
        (Crashed("signal 9"), {"status": "crashed", "reason": "signal 9"}),
        (Released("drained"), {"status": "released", "reason": "drained"}),
        (Unknown(), {"status": "unknown_task"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
async def test_endings_go_over_the_wire_and_not_what_becomes_of_the_job(ending: Ending, said: dict[str, Any]) -> None:
    async def talk(job_source: JobSource, stub: StubServer) -> None:
        lease = Lease(JobId("job-1"), 0, b"t" * 16, "t", b"", "low", None, None, 1, 1, 0, 0, 1, 1, None, 0)
        progress = [Progress(JobId("job-9"), 0, b"u" * 16, 0.5, None)]
        await job_source.exchange([FinishedRun(lease, ending, 0.25)], progress, free=0, free_below=0)
        (asked,) = stub.polls()
        always = {"task_id": "job-1", "fence": (b"t" * 16).hex(), "seconds": 0.25}
        assert asked["results"] == [always | said]
        assert asked["progress"] == [{"task_id": "job-9", "fence": (b"u" * 16).hex(), "fraction": 0.5}]

    await with_feed(nothing, talk)


# ---------------------------------------------------------------------- keeping leases


def beat(worker: WorkerInfo, *held: tuple[JobId, bytes]) -> Heartbeat:
    return Heartbeat(worker, 90_000, 10_000, held)


async def test_a_heartbeat_names_what_is_held_and_brings_news() -> None:
    policy = replace(BUILT_IN, reserve=Reserve(slots=2))
    said = {"cancel": ["a", "b"], "lost": ["b"], "policy_version": 3, "policy": policy_data(policy)}
    async with StubServer(lambda _: StubReply(said)) as stub:
        post = a_post(stub)
        answer = await post.renew(beat(a_worker("w1"), (JobId("a"), b"t" * 16)))
        assert (answer.state, list(answer.cancel), list(answer.lost)) == (WorkerState.ACTIVE, ["a"], ["b"])
        assert (post.in_force.version, post.in_force.policy.reserve.slots) == (3, 2)
        await post.renew(beat(a_worker("w1")))
        first, second = [asked.body for asked in stub.asked]
        assert first["tasks"] == [{"task_id": "a", "fence": (b"t" * 16).hex()}]
        assert second["seq"] > first["seq"]
        assert (first["policy_version"], second["policy_version"]) == (0, 3)
        await post.close()


async def test_a_heartbeat_of_a_worker_that_is_unknown_says_that_it_is_dead() -> None:
    # R5.58
    async with StubServer(lambda _: problem(409, "worker_unknown")) as stub:
        post = a_post(stub)
        answer = await post.renew(beat(a_worker("w1"), (JobId("a"), b"t" * 16)))
        assert (answer.state, list(answer.lost)) == (WorkerState.DEAD, ["a"])
        await post.close()


async def test_news_ring_once_and_an_outage_does_not_end_the_ear() -> None:
    answers = [
        StubReply({"cancel": ["a"]}),
        StubReply({"cancel": ["a"]}),
        StubReply(cut=True),
        problem(503, "stopping"),
        StubReply({"cancel": ["a"], "state": "draining"}),
        problem(409, "worker_unknown"),
    ]
    rung = 0
    async with StubServer(lambda _: answers.pop(0)) as stub:
        post = a_post(stub)
        subscription = post.subscribe("w1" + LEASE_CHANNEL)
        while answers:
            rung += await subscription.wait(5.0) is not None
            await stub.until(lambda: len(answers) in (4, 3, 2, 1, 0))
        subscription.close()
        await post.close()
    assert rung >= 2
    assert {asked.path for asked in stub.asked} == {"/internal/workers/w1/poll"}
    assert {asked.body["available_capacity"] for asked in stub.asked} == {0}


async def test_what_a_dead_runner_held_is_reported_before_the_worker_leaves() -> None:
    async with StubServer(nothing) as stub:
        post = a_post(stub)
        held = [(JobId("a"), b"a" * 16), (JobId("b"), b"b" * 16)]
        fates: dict[str, Ending] = {"a": Crashed("signal 9"), "b": Released("its runner was restarted")}
        await post.give_back("w1", held, lambda job_id, _: fates[job_id])
        await post.close()
    results, leaving = stub.asked
    assert [(one["task_id"], one["status"]) for one in results.body["results"]] == [("a", "crashed"), ("b", "released")]
    assert (leaving.path, leaving.body) == ("/internal/workers/w1/drain", {"leave": True})


# ---------------------------------------------------------------------- registering


def registered(number: int, policy: Policy | None = None, version: int = 0) -> StubReply:
    return StubReply(
        {
            "worker_id": f"w{number}",
            "poll_interval_ms": 1_000,
            "heartbeat_seconds": 5.0,
            "dead_after_seconds": 15.0,
            "confirm_seconds": 4.0,
            "policy_version": version,
            "policy": None if policy is None else policy_data(policy),
        },
        status=201,
    )


async def test_the_server_names_the_worker_and_sets_its_pace() -> None:
    async with StubServer(lambda _: registered(7, BUILT_IN)) as stub:
        post = a_post(stub)
        worker = replace(a_worker("mine", slots=4), offers=("gpu", "task:echo"))
        admitted, pace = await post.register(worker, PACE, lambda _: AppManifest([], {"echo": {}}, []), reserved=None)
        await post.close()
    (asked,) = stub.asked
    assert (admitted.worker_id, pace) == ("w7", LeaseTimes(5.0, 15.0, 4.0, 12))
    assert (asked.body["capabilities"], asked.body["capacity"], asked.body["reserved"]) == (["gpu"], 4, None)
    assert (asked.body["dead_after_seconds"], asked.body["grace_seconds"]) == (90, 12)
    assert (asked.body["heartbeat_seconds"], asked.body["limits"], asked.body["protocol"]) == (30, {}, 1)


async def test_what_was_not_published_is_logged_with_the_token_that_would(caplog: pytest.LogCaptureFixture) -> None:
    told = registered(7, BUILT_IN)
    told.body["not_published"] = [{"task_type": name, "reason": "not bound to it"} for name in ("echo", "mail")]
    cron = CronDocument(
        task="echo", expression="0 3 * * *", tz="UTC", catch_up="last", overlap="skip", lane="low", max_retries=1,
        timeout_ms=60_000, payload=b"\x01{}", tenant="acme",
    )  # fmt: skip
    async with StubServer(lambda _: told) as stub:
        post = a_post(stub)
        await post.register(a_worker("mine", slots=4), PACE, lambda _: AppManifest([], {}, [cron]), reserved=None)
        await post.close()
    assert stub.asked[0].body["crons"] == []
    logged = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any("cron.not_published task=echo" in line for line in logged)
    assert any("not bound to it" in line and "--scope worker --tasks 'echo,mail'" in line for line in logged)


async def test_who_depends_on_the_policy_registers_again_once_it_is_known() -> None:
    policy = replace(BUILT_IN, reserve=Reserve(slots=2))
    answers = [registered(1, policy, 3), StubReply({}), registered(2, policy, 3)]
    async with StubServer(lambda _: answers.pop(0)) as stub:
        post = a_post(stub)

        def known(now: Policy) -> AppManifest:
            if now == BUILT_IN:
                raise ServerRefused("a lane that is not known yet")
            return AppManifest([], {}, [])

        def changing(now: Policy) -> AppManifest:
            return AppManifest([], {"echo": {} if now == BUILT_IN else {"x": LimitRule(concurrency=1)}}, [])

        admitted, _ = await post.register(a_worker("mine", slots=4), PACE, changing, reserved=None)
        assert (admitted.worker_id, admitted.reserved) == ("w2", 2)
        assert [asked.path.rpartition("/")[2] for asked in stub.asked] == ["register", "drain", "register"]
        answers.append(registered(3, policy, 3))
        admitted, _ = await post.register(a_worker("mine", slots=4), PACE, known, reserved=1)
        assert (admitted.worker_id, admitted.reserved) == ("w3", 1)
        await post.close()


async def test_a_server_in_the_clear_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    # S-28
    caplog.set_level(logging.WARNING, "headway.worker")
    await HttpBackend("http://far.example:8000", "secret", CurrentPolicy(), mark=PAYLOAD_VERSION).close()
    assert "server.not_encrypted" in caplog.text
    assert "secret" not in caplog.text
