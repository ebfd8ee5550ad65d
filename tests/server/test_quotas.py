"""Quotas of one token: submits, streams, tickets, workers. One token cannot delay others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.client.settings import Settings
from headway.core.errors import ConfigError, TooMany
from headway.core.job import State
from headway.core.worker import WorkerState
from headway.policy_store.current import CurrentPolicy
from headway.protocol.worker import PollRequest
from headway.security.tickets import TICKET_MS
from headway.security.tokens import Tokens, create_token, revoke_token
from headway.server.auth import Principal, Scope
from headway.server.gateway.chores import RevocationEnforcer
from headway.server.gateway.service import NewWorker, WorkerGateway
from headway.server.problems import Problem
from headway.server.quotas import Bucket, Quotas
from headway.stores.base import Store
from tests.conformance.builders import a_job, submit_one
from tests.server.conftest import client_for
from tests.server.live import served
from tests.server.test_workers import TASKS, WORKERS, problem, register, submit
from tests.worker.test_policy_live import until

SUBMITTER = Principal(frozenset({Scope.SUBMIT}), token_id="a")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def quotas(clock: Clock, **settings: Any) -> Quotas:
    made = Settings(**settings)
    return Quotas(lambda: made, clock=clock)


# ---------------------------------------------------------------------- how often


def test_a_bucket_fills_with_time_and_never_overflows() -> None:
    bucket = Bucket.of("10/s", 0.0)
    assert [bucket.take(1, 0.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1, 0.0) == pytest.approx(0.1)
    assert bucket.take(3, 0.1) == pytest.approx(0.2)
    assert bucket.take(1, 0.1) == 0.0
    assert bucket.take(10, 1_000.0) == 0.0
    assert bucket.take(1, 1_000.0) == pytest.approx(0.1)


def test_a_bulk_beyond_the_bucket_is_taken_from_a_full_one_and_paid_back() -> None:
    bucket = Bucket.of("10/s", 0.0)
    assert bucket.take(25, 0.0) == 0.0
    assert bucket.take(1, 1.0) == pytest.approx(0.6)
    assert bucket.take(1, 1.6) == pytest.approx(0.0)


def test_each_token_has_its_own_rate() -> None:
    # S-20
    clock = Clock()
    counted = quotas(clock, token_rate="2/min")
    slow, other = SUBMITTER, Principal(frozenset(), token_id="b")
    fast = Principal(frozenset(), token_id="c", rate="100/s")
    counted.submit(slow, 2)
    with pytest.raises(Problem) as refused:
        counted.submit(slow)
    assert (refused.value.code, refused.value.status) == ("rate_exceeded", 429)
    assert refused.value.headers == {"Retry-After": "30"}
    counted.submit(other)
    counted.submit(fast, 100)
    clock.now = 30.0
    counted.submit(slow)
    for _ in range(1_000):
        counted.submit(Principal(frozenset(), open=True))  # Without tokens no client is counted.


@pytest.mark.parametrize("rate", ["", "fast", "0/s", "-1/s"])
def test_a_rate_that_cannot_be_read_is_refused(rate: str) -> None:
    with pytest.raises(ConfigError, match="token_rate"):
        Settings(token_rate=rate)
    assert Settings(token_rate="none").token_rate == "none"


# ---------------------------------------------------------------------- over HTTP


@contextlib.asynccontextmanager
async def caller(app: Headway, api: FastAPI, *scopes: str, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    store = await app.client.store()
    _, secret = await create_token(store, scopes, now_at=1, **more)
    api.state.service.tokens.every = 0.0
    async with client_for(api, headers={"Authorization": f"Bearer {secret}"}) as http:
        yield http


async def test_submits_beyond_the_rate_are_refused_and_others_go_on(app: Headway, api: FastAPI) -> None:
    # S-20: single, bulk, by the old route and again; whole or not at all.
    body = {"task_type": "resize"}
    async with (
        caller(app, api, "submit", tenant="acme", rate="3/h") as noisy,
        caller(app, api, "submit", tenant="bolt") as other,
    ):
        assert (await noisy.post(TASKS, json=body)).status_code == 201
        refused = await noisy.post(f"{TASKS}/bulk", json=[body] * 3)
        assert problem(refused) == (429, "rate_exceeded")
        assert int(refused.headers["retry-after"]) in range(1_000, 1_300)
        assert (await noisy.post(f"{TASKS}/bulk", json=[body] * 2)).status_code == 201
        for path, sent in ((TASKS, body), ("/task", {}), (f"{TASKS}/bulk", [body])):
            refused = await noisy.post(path, json=sent)
            assert problem(refused) == (429, "rate_exceeded")
            assert int(refused.headers["retry-after"]) > 0
        assert (await other.post(TASKS, json=body)).status_code == 201
    waiting = await (await app.client.store()).waiting_of("acme")
    assert {lane: stats.waiting for lane, stats in waiting.items()} == {"medium": 3}


async def test_a_tenant_whose_depth_is_full_is_told_so_and_others_go_on(app: Headway, api: FastAPI) -> None:
    # L7, S-20
    async with (
        caller(app, api, "admin") as admin,
        caller(app, api, "submit", tenant="acme") as full,
        caller(app, api, "submit", tenant="bolt") as other,
    ):
        policy = (await admin.get("/api/v1/policy")).json()["policy"]
        policy["tenants"]["max_depth"] = 2
        assert (await admin.put("/api/v1/policy", json=policy)).status_code in (200, 201)
        for _ in range(2):
            await submit(full)
        refused = await full.post(TASKS, json={"task_type": "resize"})
        assert problem(refused) == (429, "queue_full")
        assert "tenant acme" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "5"
        await submit(other)


@pytest.mark.parametrize("store_name", ["memory"])
async def test_tickets_of_one_token_are_bounded_until_they_are_used(app: Headway, api: FastAPI) -> None:
    # S-20
    app.configure(token_streams=2)
    async with caller(app, api, "submit", "read") as http, caller(app, api, "read") as other:
        task_id = await submit(http)
        path = f"{TASKS}/{task_id}/ticket"
        first, _ = [(await http.post(path)).json()["ticket"] for _ in range(2)]
        assert problem(await http.post(path)) == (429, "too_many")
        assert (await other.post(path)).status_code == 201
        assert (await http.delete(f"{TASKS}/{task_id}")).status_code == 200
        async with client_for(api) as browser:
            assert "cancelled" in (await browser.get(f"{TASKS}/{task_id}/events?ticket={first}")).text
        assert (await http.post(path)).status_code == 201


def test_a_ticket_that_nobody_uses_counts_for_a_minute() -> None:
    clock = Clock()
    counted = quotas(clock, token_streams=1)
    counted.open_ticket("a")
    with pytest.raises(Problem):
        counted.open_ticket("a")
    clock.now = TICKET_MS / 1_000
    counted.open_ticket("a")
    counted.use_ticket("a")
    counted.use_ticket("a")
    counted.use_ticket(None)
    counted.open_ticket("a")


@pytest.mark.parametrize("store_name", ["memory"])
async def test_streams_and_long_polls_of_one_token_are_bounded(app: Headway, api: FastAPI) -> None:
    # S-20: all of them together; what has ended makes room.
    app.configure(token_streams=2)
    store = await app.client.store()
    secrets = [(await create_token(store, ["admin"], now_at=1))[1] for _ in range(2)]
    async with served(api) as address, contextlib.AsyncExitStack() as stack:
        mine, other = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {secret}"}, timeout=30)
            )
            for secret in secrets
        ]
        task_id = await submit(mine, run_after="2999-01-01T00:00:00Z")
        worker = await register(mine, "nothing like it")
        polling = asyncio.create_task(worker.poll(1, wait_seconds=30))
        async with mine.stream("GET", f"{TASKS}/{task_id}/events") as stream:
            assert stream.status_code == 200
            told = stream.aiter_text()  # Kept: without it the stream would be closed.
            assert "retry" in await anext(told)
            quota = api.state.service.quotas
            await until(lambda: sum(quota._held.values()) == 2)
            for refused in (
                await mine.get(f"{TASKS}/{task_id}/events"),
                await worker.say("poll", available_capacity=1, wait_seconds=1),
            ):
                assert problem(refused) == (429, "too_many_streams")
                assert refused.headers["retry-after"] == "5"
            assert (await worker.poll(1))["tasks"] == []  # One that does not wait holds nothing open.
            async with other.stream("GET", f"{TASKS}/{task_id}/events") as allowed:
                assert allowed.status_code == 200
        await worker.say("drain")
        await polling
        await until(lambda: not quota._held)
        async with mine.stream("GET", f"{TASKS}/{task_id}/events") as again:
            assert again.status_code == 200


# ---------------------------------------------------------------------- workers


async def test_workers_of_one_token_are_bounded_and_those_that_left_make_room(app: Headway, api: FastAPI) -> None:
    # S-20
    app.configure(token_workers=2)
    async with caller(app, api, "worker") as http, caller(app, api, "worker") as other:
        first, _ = [await register(http) for _ in range(2)]
        refused = await http.post(f"{WORKERS}/register", json={"capabilities": []})
        assert problem(refused) == (429, "too_many")
        assert refused.headers["retry-after"] == "5"
        await register(other)
        assert (await first.say("drain", leave=True)).status_code == 200
        await register(http)
        assert problem(await http.post(f"{WORKERS}/register", json={"capabilities": []})) == (429, "too_many")


async def test_workers_that_register_at_once_are_counted(store: Store) -> None:
    gateway = WorkerGateway(store, CurrentPolicy(fixed=True))
    answers = await asyncio.gather(
        *(gateway.register(NewWorker(), token_id="a", most=3) for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(answer, TooMany) for answer in answers) == 7
    await gateway.close()


@pytest.mark.parametrize("seconds", [601, 86_400])
async def test_no_worker_counts_for_longer_than_minutes_without_a_heartbeat(
    http: httpx.AsyncClient, seconds: int
) -> None:
    # R5.16, S-20
    answer = await http.post(f"{WORKERS}/register", json={"capabilities": [], "dead_after_seconds": seconds})
    assert (answer.status_code, answer.json()["dead_after_seconds"]) == (201, 600)
    slow = {"capabilities": [], "heartbeat_seconds": 400, "dead_after_seconds": seconds}
    assert problem(await http.post(f"{WORKERS}/register", json=slow)) == (422, "invalid")


async def test_revoking_a_token_ends_its_workers_and_gives_their_jobs_back(store: Store) -> None:
    # S-2, S-20
    gateway = WorkerGateway(store, CurrentPolicy(fixed=True))

    async def opened() -> Store:
        return store

    tokens = Tokens(opened, every=0, clock_every=0)
    chore = RevocationEnforcer(gateway, tokens)
    good, bad = [await create_token(store, ["worker"], now_at=1) for _ in range(2)]
    workers = [await gateway.register(NewWorker(slots=1), token_id=token.token_id) for token, _ in (good, bad)]
    ids = [await submit_one(store, a_job()) for _ in range(2)]
    for worker in workers:
        polled = await gateway.poll(worker.worker_id, PollRequest(available_capacity=1), token_id=worker.token_id)
        assert len(polled.leases) == 1
    await chore()
    assert {one.state for one in (await store.diagnose()).workers} == {WorkerState.ACTIVE}
    await revoke_token(store, bad[0].token_id, now_at=2)
    await chore()
    states = {one.worker_id: one.state for one in (await store.diagnose()).workers}
    assert states == {workers[0].worker_id: WorkerState.ACTIVE, workers[1].worker_id: WorkerState.DEAD}
    jobs = [job for job in await store.get(ids) if job is not None]
    assert sorted(job.state for job in jobs) == [State.EXECUTING, State.QUEUED]
    [back] = [job for job in jobs if job.state is State.QUEUED]
    assert (back.attempts, back.crashes) == (0, 0)
    await chore()
    await gateway.close()


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_server_ends_the_workers_of_a_revoked_token_by_itself(app: Headway, api: FastAPI) -> None:
    # S-2
    store = await app.client.store()
    token, secret = await create_token(store, ["worker"], now_at=1)
    async with served(api) as address:
        async with httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {secret}"}) as http:
            await register(http, dead_after_seconds=600)
        await revoke_token(store, token.token_id, now_at=2)

        async def are_dead() -> bool:
            return [one.state for one in (await store.diagnose()).workers] == [WorkerState.DEAD]

        await until(are_dead, within=30.0)


async def test_a_worker_left_over_from_an_open_server_ends_with_the_first_token(store: Store) -> None:
    gateway = WorkerGateway(store, CurrentPolicy(fixed=True))

    async def opened() -> Store:
        return store

    chore = RevocationEnforcer(gateway, Tokens(opened, every=0, clock_every=0))
    await gateway.register(NewWorker())
    await chore()
    assert [one.state for one in (await store.diagnose()).workers] == [WorkerState.ACTIVE]
    await create_token(store, ["admin"], now_at=1)
    await chore()
    assert [one.state for one in (await store.diagnose()).workers] == [WorkerState.DEAD]
    await gateway.close()
