"""Cost of a call in commands of the server: it must not grow with the number of waiting jobs."""

from __future__ import annotations

import re
import threading

import pytest

from headway import Headway
from headway.core.job import NewJob
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN, LimitRule
from headway.core.policy.retry import Returned, judge
from headway.dispatch.job_source import StoreJobSource
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import declare_limits
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job, claim, claim_one, claimed_ids, end, register, report, submit
from tests.servers import Valkey


def commands(server: Valkey) -> int:
    """Return how many commands the server has executed, with those inside functions."""
    found = re.search(rb"total_commands_processed:(\d+)", server.ask("INFO", "stats"))
    assert found is not None
    return int(found[1])


async def cost_of_a_claim(store: RedisStore, server: Valkey) -> int:
    before = commands(server)
    assert len(await claim(store, free=5)) == 5
    return commands(server) - before


async def test_a_claim_costs_the_same_however_many_wait(store: RedisStore, server: Valkey) -> None:
    # R5.103
    await register(store, slots=100)
    await submit(store, *(a_job() for _ in range(10)))
    few = await cost_of_a_claim(store, server)
    for _ in range(5):
        await submit(store, *(a_job() for _ in range(1_000)))
    assert await cost_of_a_claim(store, server) <= few


async def test_a_batch_costs_hardly_more_than_one(store: RedisStore, server: Valkey) -> None:
    # R5.103
    await submit(store, a_job())
    before = commands(server)
    await submit(store, a_job(), a_job())
    two = commands(server) - before
    before = commands(server)
    await submit(store, *(a_job() for _ in range(500)))
    assert commands(server) - before <= two


async def test_a_claim_takes_exactly_as_many_as_it_may(store: RedisStore) -> None:
    # R5.55
    await register(store, slots=100)
    await submit(store, *(a_job() for _ in range(20)))
    assert len(await claimed_ids(store, free=7)) == 7
    assert (await store.stats()).lanes["medium"].waiting == 13


async def commands_of_a_drain(store: RedisStore, server: Valkey, *jobs: NewJob) -> int:
    """Return the commands that one claim of all jobs and one report of all results use."""
    await submit(store, *jobs)
    before = commands(server)
    leases = await claim(store, free=100)
    assert len(leases) == len(jobs)
    reports = [judge(Returned(b"null"), lease, BUILT_IN) for lease in leases]
    assert await report(store, *reports) == [ReportStatus.OK] * len(jobs)
    return commands(server) - before


@pytest.mark.parametrize("rule", [LimitRule(concurrency=1_000), LimitRule(count=1_000_000)], ids=["limit", "rate"])
async def test_limits_and_tenants_cost_a_batch_no_commands_for_each_job(
    store: RedisStore, server: Valkey, rule: LimitRule
) -> None:
    await register(store, slots=100)
    plain = await commands_of_a_drain(store, server, *(a_job() for _ in range(50)))
    await declare_limits(store, "t", {"t": rule})
    limited = await commands_of_a_drain(store, server, *(a_job(tenant=f"{number}") for number in range(50)))
    assert limited - plain < 20


async def test_a_limit_above_the_number_of_all_leases_costs_two_commands_for_each_key(
    store: RedisStore, server: Valkey
) -> None:
    await register(store, slots=100)
    plain = await commands_of_a_drain(store, server, *(a_job() for _ in range(50)))
    await declare_limits(store, "t", {"t": LimitRule(concurrency=1_000, by="t")})
    limited = await commands_of_a_drain(store, server, *(a_job(limits=(f"t={number}",)) for number in range(50)))
    assert limited - plain < 2 * 50 + 20


def test_threads_submit_each_on_a_connection_of_its_own(server: Valkey) -> None:
    # R2.46
    with Headway(server.url) as app:

        @app.task(name="reports.export")
        def export(number: int) -> int:
            return number

        export.enqueue(0)  # The long way, which learns where the server is.
        threads = [threading.Thread(target=lambda: [export.enqueue(n) for n in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert app.stats().lanes["medium"].waiting == 201
        for _ in range(3):  # Cut off, they go the long way, and then the short one again.
            server.ask("CLIENT", "KILL", "TYPE", "normal")
            assert export.enqueue(1).status() == "queued"
        assert app.stats().lanes["medium"].waiting == 204


async def rested(store: RedisStore) -> StoreJobSource:
    """Return a job source that knows classes, and has seen that no job waits."""
    await register(store)
    await submit(store, a_job())
    await end(store, await claim_one(store))
    feed = StoreJobSource(store, CurrentPolicy(), "w1", ())
    while (await feed.exchange([], [], free=5, free_below=4)).more:
        pass
    return feed


async def test_a_worker_that_looks_again_while_there_is_nothing_costs_one_command(
    store: RedisStore, server: Valkey
) -> None:
    # R5.103
    feed = await rested(store)
    before = commands(server)
    for _ in range(10):
        assert not (await feed.exchange([], [], free=5, free_below=4)).leases
    assert commands(server) - before == 10 + 1  # And the question for this number.


@pytest.mark.parametrize(
    "job, starts",
    [
        (a_job(), True),
        (a_job(lane="high"), True),  # A class that it does not know.
        (a_job(persist=False), True),
        (a_job(delay_ms=60_000), False),
        (a_job(needs=("gpu",)), False),
    ],
    ids=["usual", "another class", "transient", "delayed", "not for us"],
)
async def test_whatever_comes_is_seen_by_one_that_has_rested(store: RedisStore, job: NewJob, starts: bool) -> None:
    feed = await rested(store)
    assert not (await feed.exchange([], [], free=5, free_below=4)).leases
    await submit(store, job)  # Whose wake-up is lost.
    fed = await feed.exchange([], [], free=5, free_below=4)
    while fed.more and not fed.leases:
        fed = await feed.exchange([], [], free=5, free_below=4)
    assert [lease.job_id for lease in fed.leases] == ([job.job_id] if starts else [])
    assert starts or feed.idle_since == 0.0 or fed.next_due is not None
