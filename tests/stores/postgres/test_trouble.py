"""A server that many clients share: many connections at once, cut connections, poolers, odd defaults, a crash."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from headway.core.job import State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, LimitRule
from headway.core.policy.enforced import EnforcedRules
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Returned, judge
from headway.stores.base import JOB_CHANNEL, RULES, Exchange
from headway.stores.open import open_store
from headway.stores.postgres.notifier import PostgresNotifier
from headway.stores.postgres.store import PostgresStore
from headway.stores.rule_codec import rules_body
from tests.conformance.builders import (
    a_claim_id,
    a_job,
    ask,
    claim,
    claim_one,
    end,
    register,
    state_of,
    submit,
    submit_one,
)
from tests.servers import Postgres
from tests.stores.postgres.conftest import OpenStore, Outside

SOON = 5.0


async def drain(
    store: PostgresStore, worker_id: str, seen: Counter[str], *, most: int = 7, rounds: int = 10_000
) -> None:
    """Claim and finish until no job is left, or for this many rounds."""
    await register(store, worker_id, slots=most)
    held: list[Lease] = []
    for left in reversed(range(rounds)):
        chosen = plan(await store.snapshot(), free=most, free_below=most, offers=frozenset(), policy=BUILT_IN)
        reports = [judge(Returned(b"null"), lease, BUILT_IN) for lease in held]
        answer = await store.exchange(Exchange(worker_id, a_claim_id(), reports, chosen))
        assert not answer.refused
        held = list(answer.leases)
        if not left:
            await asyncio.gather(*(end(store, lease) for lease in held))
            held = []
        seen.update(lease.job_id for lease in held)
        if not held and not answer.more:
            return
        await asyncio.sleep(0)


async def test_many_workers_at_once_claim_every_job_once(open_url: OpenStore, url: str) -> None:
    # R2.7, R2.40
    stores = [await open_url(url) for _ in range(4)]
    for _ in range(3):
        await submit(stores[0], *(a_job(tenant=None) for _ in range(150)))
    seen: Counter[str] = Counter()
    await asyncio.gather(*(drain(store, f"w{index}", seen) for index, store in enumerate(stores)))
    assert len(seen) == 450
    assert set(seen.values()) == {1}
    assert (await stores[0].stats()).totals["completed"] == 450


async def test_a_limit_holds_whoever_claims_at_the_same_time(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    stores = [await open_url(url) for _ in range(4)]
    await stores[0].write(RULES, "policy", rules_body(EnforcedRules(limits={"few": LimitRule(concurrency=3)})))
    await submit(stores[0], *(a_job() for _ in range(60)))
    most = 0
    running = True

    async def watch() -> None:
        nonlocal most
        while running:
            most = max(most, await outside.fetchval(f"SELECT count(*) FROM {schema}.lease"))
            await asyncio.sleep(0.001)

    watching = asyncio.create_task(watch())
    seen: Counter[str] = Counter()
    while len(seen) < 60:
        await asyncio.gather(*(drain(store, f"w{index}", seen) for index, store in enumerate(stores)))
    running = False
    await watching
    assert set(seen.values()) == {1}
    assert most == 3


async def test_a_repeated_claim_waits_for_its_first_try(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    # R2.40
    store = await open_url(url)
    await submit_one(store)
    await register(store)
    claim_id = a_claim_id()
    async with outside.transaction():
        # The first try is still under way: it has locked its worker.
        await outside.execute(f"SELECT FROM {schema}.worker WHERE worker_id = 'w1' FOR UPDATE")
        tries = [asyncio.create_task(claim(store, claim_id=claim_id)) for _ in range(2)]
        done, _ = await asyncio.wait(tries, timeout=0.2)
        assert not done
    first, second = await asyncio.gather(*tries)
    assert [lease.job_id for lease in first] == [lease.job_id for lease in second]
    assert len(first) == 1


async def test_leases_are_counted_as_they_are(open_url: OpenStore, url: str, schema: str, outside: Outside) -> None:
    store = await open_url(url)
    await submit(store, *(a_job() for _ in range(5)), a_job(persist=False))
    await register(store)
    leases = await claim(store)
    await end(store, leases[0])
    await store.retry([leases[1].job_id])
    counted = f"SELECT running - (SELECT count(*) FROM {schema}.lease) FROM {schema}.worker"
    assert await outside.fetchval(counted) == 0


async def test_a_listener_that_was_cut_off_listens_again_and_looks_at_everything(
    open_url: OpenStore, url: str, outside: Outside
) -> None:
    # P10
    store = await open_url(url, by_server=True)
    subscription, watcher = store.subscribe("w1"), store.subscribe(JOB_CHANNEL + "one")
    await register(store)
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    assert await outside.fetchval(cut) >= 1
    assert await subscription.wait(SOON) == ()
    assert await watcher.wait(SOON) == ()
    await ask(store, wait=True)
    await submit_one(store)
    assert await subscription.wait(SOON) == ()
    subscription.close()
    watcher.close()


async def test_a_listener_reports_a_server_that_is_away_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    enough = asyncio.Event()

    async def refuse(_url: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 4:
            enough.set()
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr("headway.stores.postgres.notifier.connect", refuse)
    caplog.set_level(logging.DEBUG, "headway.postgres")

    async def watch(_names: list[str], _here: bool) -> None: ...

    notifier = PostgresNotifier("postgresql://away/headway", "a_channel", watch)
    notifier.subscribe("w1")
    async with asyncio.timeout(SOON):
        await enough.wait()
    await notifier.close()
    levels = [record.levelname for record in caplog.records if "wakeups.interrupted" in record.getMessage()]
    assert levels[:3] == ["WARNING", "DEBUG", "DEBUG"]


async def test_connections_that_were_cut_are_made_anew(open_url: OpenStore, url: str, outside: Outside) -> None:
    # P2
    store = await open_url(url)
    job_id = await submit_one(store)
    await outside.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headway'")
    assert await state_of(store, job_id) == "queued"
    await submit_one(store)


async def test_behind_a_pooler_nothing_is_kept_in_a_session(open_url: OpenStore, url: str) -> None:
    # P11
    direct = await open_url(url)
    store = await open_url(f"{url}&pgbouncer=1")
    job_id = await submit_one(store, a_job(tenant="acme"))
    await register(store)
    await end(store, await claim_one(store))
    assert await state_of(direct, job_id) is State.COMPLETED
    subscription = store.subscribe("w1")  # It never rings; a worker that waits there looks by itself now and then.
    assert await subscription.wait(0.01) is None
    subscription.close()


async def test_a_database_with_other_defaults_keeps_its_promises(url: str, outside: Outside, tmp_path: Path) -> None:
    # A cap is exact only if a statement sees what was committed while it waited for its lock.
    await outside.execute("CREATE ROLE odd SUPERUSER LOGIN")
    await outside.execute("ALTER ROLE odd SET default_transaction_isolation = 'repeatable read'")
    try:
        stores = [open_store(url.replace("postgres@", "odd@")) for _ in range(3)]
        for store in stores:
            await store.open()
        await submit(stores[0], *(a_job() for _ in range(100)))
        seen: Counter[str] = Counter()
        await asyncio.gather(*(drain(store, f"w{index}", seen) for index, store in enumerate(stores)))  # type: ignore[arg-type]
        assert len(seen) == 100
        assert set(seen.values()) == {1}
        for store in stores:
            await store.close()
    finally:
        await outside.execute("REASSIGN OWNED BY odd TO postgres; DROP OWNED BY odd; DROP ROLE odd")


async def test_texts_that_postgresql_cannot_keep_do_not_stop_an_ending(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await end(store, lease, Returned(None, "half \ud83d of a letter and\0"))
    [job] = await store.get([job_id])
    assert job is not None
    assert job.result_error == "half \ud83d of a letter and\0"


@pytest.mark.slow
async def test_a_server_that_stops_at_once_in_the_middle_of_work_loses_nothing(tmp_path: Path) -> None:
    # P1
    server = Postgres(tmp_path / "server", durable=True)
    server.start()
    try:
        store = open_store(server.url, timeout=60)
        assert isinstance(store, PostgresStore)
        await store.open()
        acknowledged: set[str] = set()
        stopped = False

        async def produce() -> None:
            while not stopped:
                acknowledged.update(await submit(store, *(a_job() for _ in range(5))))

        seen: Counter[str] = Counter()
        producing = [asyncio.create_task(produce()) for _ in range(2)]
        await drain(store, "w1", seen, rounds=5)
        await asyncio.to_thread(server.stop_immediately)
        await asyncio.to_thread(server.start)
        await drain(store, "w1", seen, rounds=5)
        stopped = True
        await asyncio.gather(*producing)
        await drain(store, "w1", seen)
        found = await store.get(list(acknowledged))  # type: ignore[arg-type]
        assert {job and job.state for job in found} == {State.COMPLETED}
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SELECT count(*) FROM headway.lease") == 0
        await connection.close()
        await store.close()
    finally:
        server.stop()
