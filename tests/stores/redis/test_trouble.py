"""A store whose server loses data, restarts, is busy or full, or is no longer the master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hiredis import ReplyError

from headway.cli.doctor import advice
from headway.core.errors import StoreBusy, StoreFull, StoreUnavailable
from headway.core.job import State
from headway.core.lease import Report, ReportStatus
from headway.core.policy.document import LimitRule
from headway.core.policy.enforced import EnforcedRules
from headway.core.worker import WorkerState
from headway.stores.base import LEASE_CHANNEL, RULES, Exchange
from headway.stores.open import open_store
from headway.stores.redis.client import RedisClient, SingleServer
from headway.stores.redis.connection import Endpoint, Login
from headway.stores.redis.store import RedisStore
from headway.stores.rule_codec import rules_body
from tests.conformance.builders import (
    a_job,
    beat,
    claim,
    claim_one,
    end,
    register,
    state_of,
    submit,
    submit_one,
)
from tests.servers import Valkey, free_port
from tests.stores.redis.conftest import OpenStore, StartServer, drain, more, recount, submitting, until

# ---------------------------------------------------------------------- a server that forgets


@pytest.mark.parametrize("what", ["FUNCTION", "SCRIPT"])
async def test_functions_that_were_flushed_are_loaded_again(store: RedisStore, server: Valkey, what: str) -> None:
    # R10
    async with submitting(store) as jobs:
        for _ in range(5):
            await more(jobs)
            assert server.ask(what, "FLUSH") == b"+OK\r\n"
        await more(jobs)
    kept = await recount(store)
    assert kept == {State.QUEUED: kept.total()}
    assert set(await drain(store)) >= {job.job_id for job in jobs}


async def test_functions_flushed_in_mid_attempt_cost_nothing(store: RedisStore, server: Valkey) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    server.ask("FUNCTION", "FLUSH")
    assert (await beat(store, held=[lease])).lost == []
    server.ask("FUNCTION", "FLUSH")
    assert await end(store, lease) is ReportStatus.OK
    assert await state_of(store, job_id) is State.COMPLETED


async def test_nothing_acknowledged_is_lost_if_a_server_with_an_append_only_file_is_killed(
    start_server: StartServer, open_url: OpenStore
) -> None:
    # R2, I1
    server = start_server("appendonly yes", "appendfsync always")
    store = await open_url(server.url)
    held_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    async with submitting(store) as jobs:
        await more(jobs, 50)
        for _ in range(2):
            server.kill()
            await asyncio.to_thread(server.start)
            await more(jobs)
    assert await end(store, lease) is ReportStatus.OK  # Leases and workers are there too.
    await recount(store)
    assert set(await drain(store)) >= {job.job_id for job in jobs}
    assert await state_of(store, held_id) is State.COMPLETED


async def test_a_server_that_lost_everything_serves_again(store: RedisStore, server: Valkey) -> None:
    # R1, R4: whatever was known of workers and leases is void, and nothing is finished that is not there.
    await submit(store, a_job(), a_job())
    worker = await register(store)
    [lease, _] = await claim(store)
    server.kill()
    await asyncio.to_thread(server.start)
    answer = await beat(store, worker, held=[lease])
    assert (answer.state, answer.lost) == (WorkerState.DEAD, [lease.job_id])
    assert await end(store, lease) is not ReportStatus.OK
    assert await recount(store) == {}
    await register(store, "w1")
    job_id = await submit_one(store)
    assert (await claim_one(store)).job_id == job_id


async def test_a_server_that_still_reads_its_file_is_waited_for(start_server: StartServer, open_url: OpenStore) -> None:
    # R13
    server = start_server("key-load-delay 3000", "loading-process-events-interval-bytes 1024")
    store = await open_url(server.url)
    job_ids = await submit(store, a_job(), a_job())
    server.ask("EVAL", "for i = 1, 300 do redis.call('SET', 'filler' .. i, string.rep('x', 100)) end", "0")
    assert server.ask("SAVE") == b"+OK\r\n"
    server.kill()
    starting = asyncio.create_task(asyncio.to_thread(server.start))

    async def loading() -> bool:
        try:
            return (await asyncio.to_thread(server.ask, "GET", "x")).startswith(b"-LOADING")
        except OSError:
            return False

    await until(loading)
    assert [job.job_id for job in await store.get(job_ids) if job] == job_ids
    await starting


# ---------------------------------------------------------------------- connections


async def test_connections_killed_all_the_time_lose_and_double_nothing(store: RedisStore, server: Valkey) -> None:
    # R17
    async with submitting(store) as jobs:
        for _ in range(15):
            await more(jobs, 5)
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    known = len(jobs)
    ran = await drain(store)
    assert len(ran) == len(set(ran))
    assert {job.job_id for job in jobs} <= set(ran)
    assert len(ran) <= known + 3  # Each task may have had one under way.
    assert (await store.stats()).totals["submitted"] == len(ran)


async def test_an_ear_that_lost_its_connection_looks_at_everything_and_hears_again(
    store: RedisStore, server: Valkey, open_url: OpenStore
) -> None:
    # R12: only the subscriptions use the connection meanwhile.
    other = await open_url(server.url)
    subscriptions = [store.subscribe("watch.me"), store.subscribe(f"w1{LEASE_CHANNEL}")]
    assert [await subscription.wait(0) for subscription in subscriptions] == [None, None]
    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    assert [await subscription.wait(10) for subscription in subscriptions] == [(), ()]
    job_id = await submit_one(other)
    assert await subscriptions[0].wait(10) == (job_id,)
    await register(other)
    await other.drain("w1")
    assert await subscriptions[1].wait(10) == ()


async def test_an_ear_hears_again_after_a_restart(store: RedisStore, server: Valkey, open_url: OpenStore) -> None:
    subscription = store.subscribe("watch.me")
    assert await subscription.wait(0) is None
    server.kill()
    await asyncio.to_thread(server.start)
    assert await subscription.wait(20) == ()
    job_id = await submit_one(await open_url(server.url))
    assert await subscription.wait(10) == (job_id,)


async def test_an_ear_opened_while_there_is_no_connection_finds_one(
    store: RedisStore, server: Valkey, open_url: OpenStore
) -> None:
    server.ask("CLIENT", "KILL", "TYPE", "normal")

    async def gone() -> bool:
        return store._client.connection is None

    await until(gone)
    subscription = store.subscribe("watch.me")
    assert await subscription.wait(10) == ()
    job_id = await submit_one(await open_url(server.url))
    assert await subscription.wait(10) == (job_id,)


@pytest.mark.usefixtures("hasty")
async def test_a_server_that_is_away_for_long_is_said_to_be(store: RedisStore, server: Valkey) -> None:
    server.kill()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await submit(store, a_job())
    await asyncio.to_thread(server.start)
    await submit(store, a_job())


@pytest.mark.usefixtures("hasty")
async def test_a_frozen_server_is_given_up_and_found_again(store: RedisStore, server: Valkey) -> None:
    # N2, R11: a call shorter than a connection may be silent does not keep a dead one alive.
    job = a_job()
    server.freeze()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await store.stats()
    with pytest.raises(StoreUnavailable):
        await submit(store, job)
    server.thaw()
    await submit(store, job)
    assert await recount(store) == {State.QUEUED: 1}


async def test_new_clients_are_told_that_there_are_too_many(
    start_server: StartServer, open_url: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R14
    server = start_server()
    store = await open_url(server.url)
    server.ask("CONFIG", "SET", "maxclients", "1")
    monkeypatch.setattr("headway.stores.redis.client.BACKOFF", 60.0)  # The first refusal is the last.
    with pytest.raises(StoreUnavailable, match="max number of clients"):
        await open_url(f"{server.url}?timeout=30")
    await submit(store, a_job())


class UnreachableServer(SingleServer):
    """A server whose address cannot be found: it raises each problem in turn, then blocks the caller."""

    def __init__(self, *problems: Exception) -> None:
        super().__init__(Endpoint())
        self._problems = list(problems)

    async def find(self) -> Endpoint:
        if self._problems:
            raise self._problems.pop(0)
        return await asyncio.Future()


@pytest.mark.parametrize(
    "problems, said",
    [
        ([], "no answer within 1 s"),
        ([ConnectionError("no route"), ReplyError("ERR max number of clients reached")], "max number of clients"),
    ],
)
async def test_a_deadline_reports_the_last_problem_before_it(problems: list[Exception], said: str) -> None:
    link = RedisClient(UnreachableServer(*problems), Login(), lambda *_: None, lambda _: None, timeout=1.0)
    with pytest.raises(StoreUnavailable, match=said):
        await link.ask("PING")
    await link.close()


# ---------------------------------------------------------------------- a busy server


@asynccontextmanager
async def busy(server: Valkey) -> AsyncIterator[None]:
    """Run an endless script of another program, and kill it at the end."""
    script = asyncio.create_task(asyncio.to_thread(server.ask, "EVAL", "while true do end", "0"))

    async def is_busy() -> bool:
        return (await asyncio.to_thread(server.ask, "GET", "x")).startswith(b"-BUSY")

    await until(is_busy)
    try:
        yield
    finally:
        server.ask("SCRIPT", "KILL")
        assert b"script" in await script


async def test_a_busy_server_is_waited_for(start_server: StartServer, open_url: OpenStore) -> None:
    # R11
    server = start_server("busy-reply-threshold 20")
    store = await open_url(server.url)
    job = a_job()
    async with busy(server):
        submitted = asyncio.create_task(store.submit([job]))
        done, _ = await asyncio.wait([submitted], timeout=0.3)
        assert not done
    assert [answer.job_id for answer in await submitted] == [job.job_id]
    assert await recount(store) == {State.QUEUED: 1}


@pytest.mark.usefixtures("hasty")
async def test_a_server_that_stays_busy_is_said_to_be(start_server: StartServer, open_url: OpenStore) -> None:
    server = start_server("busy-reply-threshold 20")
    store = await open_url(server.url)
    async with busy(server):
        with pytest.raises(StoreBusy, match="BUSY"):
            await submit(store, a_job())
    await submit(store, a_job())
    assert await recount(store) == {State.QUEUED: 1}


# ---------------------------------------------------------------------- a full server


async def test_a_full_server_takes_no_jobs_and_lets_work_end(server: Valkey, open_url: OpenStore) -> None:
    # R8, F6
    store = await open_url(server.url)
    worker = await register(store)
    job_ids = await submit(store, *(a_job(payload=bytes(2_000)) for _ in range(4)))
    first = await claim_one(store)
    before = server.ask("DBSIZE"), await recount(store), (await store.stats()).totals
    server.ask("CONFIG", "SET", "maxmemory", "1000000")
    for _ in range(3):
        with pytest.raises(StoreFull, match="maxmemory"):
            await submit(store, a_job(), a_job(lane="other", unique_key="u", idempotency_key="k", expires_ms=1_000))
    assert (server.ask("DBSIZE"), await recount(store), (await store.stats()).totals) == before

    assert (await beat(store, worker, held=[first])).lost == []
    assert await end(store, first) is ReportStatus.OK
    second, third, fourth = await claim(store, free=3)
    assert await end(store, second) is ReportStatus.OK
    assert await store.cancel([third.job_id]) == [State.EXECUTING]
    assert await store.write("policies", "x", b"1") == 1
    newcomer = await open_url(server.url)  # Who comes to help must get in.
    await register(newcomer, "w2")
    assert (await beat(newcomer, "w2")).state is WorkerState.ACTIVE
    assert await end(newcomer, third) is ReportStatus.OK
    assert await end(newcomer, fourth) is ReportStatus.OK
    assert await recount(store) == {State.COMPLETED: 4}
    assert {job.job_id for job in await store.get(job_ids) if job} == set(job_ids)

    server.ask("CONFIG", "SET", "maxmemory", "0")
    await submit(store, a_job())


async def test_a_full_server_without_our_functions_says_so(server: Valkey, open_url: OpenStore) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "1000000")
    with pytest.raises(StoreFull, match="no room left for Headway's functions"):
        await open_url(server.url)


# ---------------------------------------------------------------------- no longer the master


async def test_a_master_that_became_a_replica_is_waited_for(store: RedisStore, server: Valkey) -> None:
    # R7: no busy loop meanwhile.
    job = a_job()
    subscription = store.subscribe("watch.me")
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    connected = _connections(server)
    submitted = asyncio.create_task(store.submit([job]))
    done, _ = await asyncio.wait([submitted], timeout=0.5)
    assert not done
    assert 1 <= _connections(server) - connected <= 15
    server.ask("REPLICAOF", "NO", "ONE")
    assert [answer.job_id for answer in await submitted] == [job.job_id]
    assert await subscription.wait(10) == ()
    assert await recount(store) == {State.QUEUED: 1}


@pytest.mark.usefixtures("hasty")
async def test_a_server_that_stays_a_replica_is_said_to_be_and_ears_come_back(
    store: RedisStore, server: Valkey, open_url: OpenStore
) -> None:
    subscription = store.subscribe("watch.me")
    server.ask("REPLICAOF", "127.0.0.1", str(free_port()))
    with pytest.raises(StoreUnavailable, match="is a replica"):
        await submit(store, a_job())
    server.ask("REPLICAOF", "NO", "ONE")
    assert await subscription.wait(20) == ()
    job_id = await submit_one(await open_url(server.url))
    assert await subscription.wait(10) == (job_id,)


@pytest.mark.parametrize("options", ["", "?replicas=1&replicas_ms=50"])
async def test_a_store_whose_server_starts_later_can_be_opened_then(tmp_path: Path, options: str) -> None:
    server = Valkey(tmp_path / "server", 'save ""')
    store = open_store(f"{server.url}/0{options}")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"does not answer: .*Errno 111"):
            await store.open()
    server.start()
    try:
        await store.open()
        assert await store.write("note", "one", b"kept") == 1
        assert (await store.stats()).workers == ()
    finally:
        await store.close()
        server.stop()


async def test_a_server_that_cannot_write_its_file_is_waited_for_and_named(
    server: Valkey, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R13: its last snapshot failed, and it takes no more writes.
    server.ask("CONFIG", "SET", "save", "3600 1")
    server.ask("SET", "x", "1")
    server.folder.chmod(0o500)
    try:
        server.ask("BGSAVE")

        async def failed() -> bool:
            return b"rdb_last_bgsave_status:err" in await asyncio.to_thread(server.ask, "INFO", "persistence")

        await until(failed)
        monkeypatch.setattr("headway.stores.redis.client.PATIENCE", 0.3)
        with pytest.raises(StoreUnavailable, match="accepts no writes: MISCONF") as caught:
            await submit(store, a_job())
        assert "free room on its disk" in advice(caught.value)
    finally:
        server.folder.chmod(0o700)
    server.ask("CONFIG", "SET", "save", "")
    await submit(store, a_job())
    assert await recount(store) == {State.QUEUED: 1}


def _connections(server: Valkey) -> int:
    [line] = [line for line in server.ask("INFO", "stats").split() if line.startswith(b"total_connections_received")]
    return int(line.partition(b":")[2])


async def test_rules_written_after_a_flush_are_not_taken_for_those_before(store: RedisStore, server: Valkey) -> None:
    await store.write(RULES, "policy", rules_body(EnforcedRules(limits={"all": LimitRule(concurrency=1)})))
    await register(store, slots=5)
    await submit(store, *(a_job() for _ in range(3)))
    assert len(await claim(store, free=3)) == 1
    server.ask("FLUSHALL")
    await store.write(RULES, "policy", rules_body(EnforcedRules(limits={"all": LimitRule(concurrency=2)})))
    await register(store, slots=5)
    await submit(store, *(a_job() for _ in range(3)))
    assert len(await claim(store, free=3)) == 2


# ---------------------------------------------------------------------- records that another program deleted


@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("gap", [0, 1, 2])
async def test_a_job_whose_record_is_missing_is_passed_over(
    store: RedisStore, server: Valkey, gap: int, tenant: str | None
) -> None:
    # R5.60
    jobs = await submit(store, *(a_job(tenant=tenant) for _ in range(3)))
    key = server.ask("KEYS", "*:job").split(b"\r\n")[2].decode()
    assert server.ask("HDEL", key, str(10**15 + gap + 1)) == b":1\r\n"
    seen = await store.snapshot()
    assert (seen.classes[0].waiting, seen.classes[0].oldest_at is None) == (3, False)
    assert (await store.stats()).lanes["medium"].waiting == 3
    await store.diagnose()
    assert await store.get([jobs[gap]]) == [None]
    await register(store)
    kept = [job_id for number, job_id in enumerate(jobs) if number != gap]
    leases = await claim(store)
    assert [(lease.job_id, lease.unreadable) for lease in leases] == [(job_id, None) for job_id in kept]
    assert [lease.job_id for lease in await store.leases(worker_id="w1")] == kept
    assert (await store.stats()).lanes["medium"].waiting == 0  # It was dropped from its line.
    for lease in leases:
        assert await end(store, lease) is ReportStatus.OK


async def test_a_running_job_whose_record_is_missing_still_ends(store: RedisStore, server: Valkey) -> None:
    # R5.60
    await submit(store, a_job(tenant="acme"), a_job(tenant="acme"))
    await register(store)
    first, second = await claim(store)
    key = server.ask("KEYS", "*:job").split(b"\r\n")[2].decode()
    server.ask("HDEL", key, str(10**15 + first.seq))
    await store.diagnose()
    assert [lease.unreadable is None for lease in await store.leases(worker_id="w1")] == [False, True]
    assert await end(store, first) is ReportStatus.OK
    assert await end(store, second) is ReportStatus.OK
    assert await store.leases(worker_id="w1") == []


async def test_attempts_beyond_what_two_bytes_hold_stay_at_the_most(store: RedisStore) -> None:
    job_id = await submit_one(store, a_job(max_retries=1_000_000))
    await register(store)
    for _ in range(2):
        lease = await claim_one(store)
        report = Report(lease.job_id, lease.seq, lease.token, State.QUEUED, reason="failed", attempts=65_535)
        await store.exchange(Exchange(None, finished=[report]))
    assert (await claim_one(store)).attempts == 65_535
    [job] = await store.get([job_id])
    assert job is not None
    assert (job.attempts, job.state) == (65_535, State.EXECUTING)
