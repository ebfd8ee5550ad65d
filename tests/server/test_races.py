"""Concurrent calls: one of them wins, and all replies agree with the state of the task."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.client.task import Call
from headway.core.errors import StoreUnavailable
from headway.core.job import SubmitReply
from headway.core.policy.document import BUILT_IN
from headway.maintenance.recovery import overdue, reap
from headway.server.api import headway_api
from headway.server.maintenance import run_maintenance
from headway.server.submit_batcher import SubmitBatcher
from headway.stores.base import Store
from tests.conftest import ADDRESSES
from tests.server.conftest import client_for, make_app
from tests.server.test_fasdis_live import instances
from tests.server.test_workers import TASKS, Worker, problem, register, submit, task

EPISODES = {"memory": 40, "sqlite": 15, "redis": 15}  # Of each of four races.
PROOF = 1_000
SOON = 30.0  # Seconds; a busy machine takes its time.

stores = pytest.mark.parametrize("store_name", list(EPISODES))


@pytest.fixture
async def second(app: Headway, store_name: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield another server on the same store, with connections of its own if the store can be opened twice."""
    async with contextlib.AsyncExitStack() as stack:
        if store_name != "memory":
            app = await stack.enter_async_context(make_app(ADDRESSES[store_name](tmp_path)))
        yield await stack.enter_async_context(client_for(headway_api(app, hosts=["testserver"])))


@pytest.fixture
async def store(app: Headway) -> Store:
    return await app.client.store()


async def later(turns: int, call: Callable[[], Awaitable[Any]]) -> Any:
    """Call a function after this many turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await call()


class Race:
    """Two servers, a worker that may use either, and a random source."""

    def __init__(self, servers: list[httpx.AsyncClient], worker: Worker, seed: int) -> None:
        self._servers = servers
        self._worker = worker
        self._random = random.Random(seed)

    def server(self) -> httpx.AsyncClient:
        return self._random.choice(self._servers)

    def worker(self) -> Worker:
        return Worker(self.server(), self._worker.worker_id, self._worker.capabilities)

    async def together(self, *calls: Callable[[], Awaitable[Any]]) -> list[Any]:
        """Make calls at about the same time, in any order."""
        spread = self._random.choice([0, 3, 30, 100])
        made = [later(self._random.randint(0, spread), call) for call in calls]
        async with asyncio.timeout(SOON):
            return list(await asyncio.gather(*made))

    async def cancel(self, task_id: str) -> int:
        answer = await self.server().delete(f"{TASKS}/{task_id}")
        told = answer.json()
        match answer.status_code:
            case 200:
                assert told["status"] == "cancelled"
            case 202:
                assert (told["status"], told["cancel_requested_at"] is None) == ("executing", False)
            case _:
                assert problem(answer) == (409, "illegal_move")
        return answer.status_code

    async def finish(self, given: dict[str, Any], **more: Any) -> tuple[int, str]:
        answer = await self.worker().say("result", task_id=given["task_id"], fence=given["fence"], **more)
        return answer.status_code, answer.json().get("status" if answer.is_success else "code")

    async def state(self, task_id: str) -> str:
        found: str = (await task(self.server(), task_id))["status"]
        return found

    # ------------------------------------------------------------------ the races

    async def cancel_and_claim(self) -> str:
        task_id = await submit(self.server())
        cancelled, polled = await self.together(lambda: self.cancel(task_id), lambda: self.worker().poll(1))
        given = [one for one in polled["tasks"] if one["task_id"] == task_id]
        if not given:
            assert (cancelled, await self.state(task_id)) == (200, "cancelled")
            return "cancelled"
        assert (cancelled, await self.state(task_id)) == (202, "executing")
        assert (await self.worker().say("heartbeat", current_load=1)).json()["cancel"] == [task_id]
        assert await self.finish(given[0], status="cancelled") == (200, "cancelled")
        return "claimed"

    async def cancel_and_complete(self) -> str:
        given = await self._claimed()
        task_id = given["task_id"]
        cancelled, told, again = await self.together(
            lambda: self.cancel(task_id),
            lambda: self.finish(given, status="completed", result=1),
            lambda: self.finish(given, status="completed", result=1),
        )
        # Work that is done is not undone, and the one who asked is told the truth of that moment.
        assert (told, again, await self.state(task_id)) == ((200, "completed"),) * 2 + ("completed",)
        assert cancelled in (202, 409)
        return str(cancelled)

    async def cancel_and_fail(self) -> str:
        given = await self._claimed()
        task_id = given["task_id"]
        cancelled, told = await self.together(
            lambda: self.cancel(task_id),
            lambda: self.finish(given, status="failed", error={"message": "x"}, retry_after_seconds=60),
        )
        # Before the report: the task ends with it. After it: it waits to be run again, and ends at once.
        assert await self.state(task_id) == "cancelled"
        assert (cancelled, told[0]) in ((202, 200), (200, 200))
        assert told[1] in ({"cancelled"} if cancelled == 202 else {"queued", "cancelled"})
        assert await self.finish(given, status="failed", error={"message": "x"}, retry_after_seconds=60) in (
            (200, "cancelled"),
            (200, told[1]),
        )
        return str(cancelled)

    async def cancel_and_retry(self) -> str:
        given = await self._claimed(max_retries=0, required_capabilities=["gpu"])
        task_id = given["task_id"]
        assert (await self.finish(given, status="failed", error={"message": "x"}))[0] == 200
        cancelled, retried = await self.together(
            lambda: self.cancel(task_id), lambda: self.server().post(f"{TASKS}/{task_id}/retry")
        )
        state = await self.state(task_id)
        assert (retried.status_code, retried.json()["status"]) == (200, "queued")
        assert (cancelled, state) in ((200, "cancelled"), (409, "queued"))
        if state == "queued":
            assert await self.cancel(task_id) == 200
        # A report of the attempt before the retry says nothing about what came after it.
        assert await self.finish(given, status="completed", result=2) == (409, "lease_lost")
        assert await self.state(task_id) == "cancelled"
        return str(cancelled)

    async def _claimed(self, **body: Any) -> dict[str, Any]:
        task_id = await submit(self.server(), **body)
        given = await self.worker().claim()
        assert given["task_id"] == task_id
        return given


async def run_races(http: httpx.AsyncClient, second: httpx.AsyncClient, seed: int, episodes: int) -> None:
    race = Race([http, second], await register(http, "gpu", reserved=0), seed)
    winners: dict[str, Counter[str]] = {}
    for _ in range(episodes):
        for run in (race.cancel_and_claim, race.cancel_and_complete, race.cancel_and_fail, race.cancel_and_retry):
            winners.setdefault(run.__name__, Counter())[await run()] += 1
    stats = (await http.get("/api/v1/queue/stats")).json()
    assert stats["workers"]["used_capacity"] == 0
    assert sum(lane["depth"] for lane in stats["queues"].values()) == 0
    assert all(len(won) == 2 for won in winners.values()), winners  # Either way, each of them.


@stores
async def test_a_cancel_races_claim_finish_and_retry(
    http: httpx.AsyncClient, second: httpx.AsyncClient, store_name: str, seed: int
) -> None:
    # H10, I2, I3
    await run_races(http, second, seed, EPISODES[store_name])


@pytest.mark.proof
@stores
async def test_a_cancel_races_claim_finish_and_retry_a_thousand_times(
    http: httpx.AsyncClient, second: httpx.AsyncClient, seed: int
) -> None:
    # H10, I2, I3
    await run_races(http, second, seed + 1, PROOF)


@stores
async def test_what_was_handed_in_at_one_server_leaves_room_at_the_other_at_once(
    http: httpx.AsyncClient, second: httpx.AsyncClient
) -> None:
    # Found by the races, with a seed that made the same server hand out five tasks in a row.
    worker = await register(http, reserved=0)
    there = Worker(second, worker.worker_id, [])
    for _ in range(12):
        await submit(http)
        given = await worker.claim()
        answer = await there.say("result", task_id=given["task_id"], fence=given["fence"], status="completed")
        assert answer.status_code == 200


# ---------------------------------------------------------------------- results


@stores
async def test_a_result_that_comes_twice_at_once_counts_once(
    http: httpx.AsyncClient, second: httpx.AsyncClient, store: Store, seed: int
) -> None:
    # H1
    race = Race([http, second], await register(http, reserved=0), seed)
    for number in range(10):
        await submit(http, parameters={"id": number})
        given = await race.worker().claim()
        answers = await race.together(
            *[lambda: race.finish(given, status="completed", result="a")] * 3,  # noqa: B023
            lambda: race.finish(given, status="failed", error={"message": "b", "retriable": False}),  # noqa: B023
        )
        found = await task(http, given["task_id"])
        won = answers[0] if found["status"] == "completed" else answers[3]
        assert won == (200, found["status"])
        for answer, ended in zip(answers, ["completed"] * 3 + ["failed"], strict=True):
            assert answer == ((200, ended) if ended == found["status"] else (409, "lease_lost"))
        assert [bool(found["result"]), bool(found["error"])] == [
            ended == found["status"] for ended in ("completed", "failed")
        ]
    assert (await store.stats()).totals["claimed"] == 10


@stores
async def test_a_result_after_its_lease_ran_out_counts_until_somebody_else_has_the_task(
    http: httpx.AsyncClient, second: httpx.AsyncClient, store: Store
) -> None:
    # H2, H3, I4
    short = {"heartbeat_seconds": 0.5, "dead_after_seconds": 2}
    late, slow = await register(http, **short), await register(http, **short)
    kept, lost = await submit(http), await submit(http)
    mine, theirs = await late.claim(), await slow.claim()
    assert (mine["task_id"], theirs["task_id"]) == (kept, lost)
    async with asyncio.timeout(SOON):
        while len(await overdue(store)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    # H3: no other worker has it, so it counts; whichever server it comes to.
    late.http = second
    told = await late.say("result", task_id=kept, fence=mine["fence"], status="completed", result=1)
    assert (told.status_code, told.json()["status"]) == (200, "completed")
    # H2: this one is given to another, and what the first says counts for nothing, also while that one runs.
    assert await reap(store, await overdue(store), BUILT_IN) == 1
    other = await register(second)
    async with asyncio.timeout(SOON):
        while not (polled := await other.poll(1, wait_seconds=1))["tasks"]:
            pass
    [given] = polled["tasks"]
    assert (given["task_id"], given["attempt"]) == (lost, 2)
    word = {"task_id": lost, "status": "completed", "result": "old"}
    for answer in (
        await slow.say("result", **word, fence=theirs["fence"]),
        await slow.say("result", **word),
        await slow.say("result", **word, fence=given["fence"]),  # H4: with the fence of another.
    ):
        assert problem(answer) == (409, "lease_lost")
    told = await other.say("result", task_id=lost, fence=given["fence"], status="completed", result="new")
    assert told.json()["status"] == "completed"
    assert problem(await slow.say("result", **word, fence=theirs["fence"])) == (409, "lease_lost")
    found = await task(http, lost)
    assert (found["status"], found["result"], [one["worker_id"] for one in found["attempts"]]) == (
        "completed",
        "new",
        [slow.worker_id],
    )


# ---------------------------------------------------------------------- claims


@stores
async def test_a_poll_that_is_repeated_gives_the_same_tasks(
    http: httpx.AsyncClient, second: httpx.AsyncClient, store: Store, seed: int
) -> None:
    # H5: at once or later, to this server or another; no worker gets more than it asked for.
    race = Race([http, second], await register(http, capacity=100, reserved=0), seed)
    for number in range(8):
        ids = {await submit(http, parameters={"id": one}) for one in range(4)}
        claim = {"claim_id": f"claim-{number:05d}"}
        polls = await race.together(*[lambda: race.worker().poll(2, **claim)] * 5)  # noqa: B023
        polls += [await race.worker().poll(2, **claim) for _ in range(2)]
        given = {one["task_id"]: one for polled in polls for one in polled["tasks"]}
        assert len(given) == 2
        # Of those that came at the same time only the newest is given any; those that come later get the same.
        assert (
            {one["task_id"] for one in polls[-1]["tasks"]}
            == given.keys()
            == {one["task_id"] for one in polls[-2]["tasks"]}
        )
        assert len({(one["task_id"], one["fence"]) for polled in polls for one in polled["tasks"]}) == 2
        assert len(await store.leases(worker_id=race.worker().worker_id)) == 2
        for one in given.values():
            assert await race.finish(one, status="completed") == (200, "completed")
        assert (await race.worker().poll(2, **claim))["tasks"] == []  # All of it is done; it claims nothing anew.
        for task_id in ids - given.keys():
            assert await race.cancel(task_id) == 200


# ---------------------------------------------------------------------- submits


@stores
async def test_submits_with_one_key_at_once_make_one_task(
    http: httpx.AsyncClient, second: httpx.AsyncClient, seed: int
) -> None:
    race = Race([http, second], Worker(http, "none", []), seed)
    for number in range(10):
        body = {"task_type": "odd", "idempotency_key": f"key-{number}"}
        asks = [lambda: race.server().post(TASKS, json=body)] * 5  # noqa: B023
        asks += [lambda: race.server().post(TASKS, json=body | {"parameters": {"other": 1}})]  # noqa: B023
        _check_one_key(await race.together(*asks))


@pytest.mark.proof
async def test_submits_with_one_key_to_two_processes_make_one_task(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with instances(tmp_path, ADDRESSES["redis"](tmp_path), 2) as clients:
        hosts = [str(client.base_url) for client in clients]
        async with httpx.AsyncClient(timeout=20) as http:
            for number in range(20):
                body = {"task_type": "odd", "idempotency_key": f"key-{number}"}
                bodies = [body] * 7 + [body | {"parameters": {"other": 1}}]
                chance.shuffle(bodies)
                calls = [http.post(f"{chance.choice(hosts)}{TASKS}", json=one) for one in bodies]
                _check_one_key(await asyncio.gather(*calls))


def _check_one_key(answers: list[httpx.Response]) -> None:
    """Check that one call created the task, that equal calls got the same task, and that others were refused."""
    made = [answer for answer in answers if answer.status_code == 201]
    same = [answer for answer in answers if answer.status_code == 200]
    others = [answer for answer in answers if answer.status_code not in (200, 201)]
    assert len(made) == 1
    assert {answer.json()["task_id"] for answer in same} <= {made[0].json()["task_id"]}
    assert all(answer.headers["idempotent-replayed"] == "true" for answer in same)
    assert {problem(answer) for answer in others} <= {(409, "idempotency_conflict")}
    assert len(same) == 0 or len(others) == 1 or len(others) == len(answers) - 1


# ---------------------------------------------------------------------- what one meets is not another's trouble


class FailingSubmitter:
    """A submitter that fails for a batch with a marked call, and for that call alone."""

    def __init__(self, app: Headway, trouble: Exception) -> None:
        self._app = app
        self._trouble = trouble
        self.tries = 0

    async def submit(self, calls: Sequence[Call[Any]]) -> list[SubmitReply]:
        self.tries += 1
        await asyncio.sleep(0)
        if any(b"poison" in call.new.payload for call in calls):
            raise self._trouble
        return await self._app.submitter.submit(calls)


async def intake_of(app: Headway, trouble: Exception, values: list[str]) -> tuple[FailingSubmitter, list[Any]]:
    submitter = FailingSubmitter(app, trouble)
    submit_batcher = SubmitBatcher(submitter)  # type: ignore[arg-type]
    calls = [app.tasks["fail"].call_named({"message": value}) for value in values]
    async with asyncio.timeout(SOON):
        return submitter, await asyncio.gather(*(submit_batcher.submit(call) for call in calls), return_exceptions=True)


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_task_that_meets_a_mistake_of_ours_holds_up_no_other(app: Headway) -> None:
    _, answers = await intake_of(app, RuntimeError("nobody thought of this"), ["a", "poison", "b"])
    assert [type(answer) for answer in answers] == [SubmitReply, RuntimeError, SubmitReply]


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_store_that_is_away_is_not_asked_again_for_each_of_many(app: Headway) -> None:
    submitter, answers = await intake_of(app, StoreUnavailable("away"), ["poison"] * 50)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 50
    assert submitter.tries == 1


@pytest.mark.parametrize("store_name", ["memory"])
async def test_one_worker_more_than_cached_sessions_is_served(
    app: Headway, http: httpx.AsyncClient, api: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.gateway.service.SESSIONS_MAX", 1)
    first, second = await register(http), await register(http)
    waiting = asyncio.create_task(first.poll(1, wait_seconds=5))
    gateway = await api.state.service.gateway()
    async with asyncio.timeout(SOON):
        while not (first.worker_id in gateway.sessions and gateway.sessions[first.worker_id].polls):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (await second.poll(1))["tasks"] == []  # Its session is the only one without a poll.
    task_id = await submit(http)
    assert [given["task_id"] for given in (await waiting)["tasks"]] == [task_id]


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_chore_that_fails_is_tried_again_and_stops_no_other(
    app: Headway, api: FastAPI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headway.maintenance.loop.ERROR_RETRY", 0.01)
    monkeypatch.setattr("headway.server.gateway.chores.DURATIONS_EVERY", 0.01)
    failed, learned = asyncio.Event(), asyncio.Event()

    class Failing:
        def __init__(self, *_: object, **__: object) -> None:
            self.calls = 0

        async def __call__(self) -> None:
            self.calls += 1
            if self.calls > 1:
                failed.set()
            raise RuntimeError("nobody thought of this")

    async def learn() -> None:
        if failed.is_set():
            learned.set()

    monkeypatch.setattr("headway.server.gateway.chores.TimeoutEnforcer", Failing)
    monkeypatch.setattr(await api.state.service.gateway(), "learn", learn)
    async with run_maintenance(api.state.service), asyncio.timeout(SOON):
        await learned.wait()
    assert "nobody thought of this" in caplog.text


@pytest.mark.parametrize("store_name", ["memory"])
async def test_store_trouble_ends_a_stream_without_a_fuss(
    http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # H9: its client comes back; a traceback for each stream in the log would be noise.
    task_id = await submit(http)

    async def away(*_: object) -> Any:
        raise StoreUnavailable("away")

    asked = asyncio.create_task(http.get(f"{TASKS}/{task_id}/events"))
    await asyncio.sleep(0.05)
    monkeypatch.setattr(store, "get", away)
    async with asyncio.timeout(SOON):
        answer = await asked
    assert (answer.status_code, "event: queued" in answer.text) == (200, True)
