"""Replies that are lost after their effect: every call is repeated, and takes effect once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.job import JobId, State
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Returned, judge
from headway.stores.base import Exchange
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import (
    a_claim_id,
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
from tests.servers import Proxy, Valkey
from tests.stores.redis.conftest import OpenStore, drain, recount, until

# P4 for Redis: the request arrives, its reply does not.


async def test_a_submit_is_kept_once(behind: RedisStore, proxy: Proxy) -> None:
    jobs = [a_job(), a_job(unique_key="u"), a_job(idempotency_key="k"), a_job(delay_ms=60_000)]
    proxy.lose_replies()
    assert await submit(behind, *jobs) == [job.job_id for job in jobs]
    assert proxy.lost == 1
    assert await recount(behind) == {State.QUEUED: 4}
    assert (await behind.stats()).totals["submitted"] == 4


async def test_a_claim_gives_the_same_leases_again(behind: RedisStore, proxy: Proxy) -> None:
    # R5.60, W10
    await submit(behind, *(a_job() for _ in range(5)))
    await register(behind)
    snapshot = await behind.snapshot()
    takes = plan(snapshot, free=3, free_below=3, offers=frozenset(), policy=BUILT_IN)
    proxy.lose_replies()
    answer = await behind.exchange(Exchange("w1", a_claim_id(), plan=takes))
    assert proxy.lost == 1
    assert len(answer.leases) == 3
    assert {lease.job_id for lease in answer.leases} == {lease.job_id for lease in await behind.leases(worker_id="w1")}
    for lease in answer.leases:
        assert await end(behind, lease) is ReportStatus.OK
    assert {job.attempts for job in await behind.get([lease.job_id for lease in answer.leases]) if job} == {1}
    assert await recount(behind) == {State.QUEUED: 2, State.COMPLETED: 3}


async def test_an_exchange_that_ends_and_claims_does_both_once(behind: RedisStore, proxy: Proxy) -> None:
    await submit(behind, a_job(), a_job())
    await register(behind)
    lease = await claim_one(behind)
    report = judge(Returned(b"1"), lease, BUILT_IN)
    takes = plan(await behind.snapshot(), free=1, free_below=1, offers=frozenset(), policy=BUILT_IN)
    proxy.lose_replies()
    answer = await behind.exchange(Exchange("w1", a_claim_id(), [report], takes))
    assert proxy.lost == 1
    assert [job_id for job_id, _ in answer.refused] in ([], [lease.job_id])
    assert ReportStatus.STALE not in dict(answer.refused).values()
    assert len(answer.leases) == 1
    assert await recount(behind) == {State.COMPLETED: 1, State.EXECUTING: 1}
    totals = (await behind.stats()).totals
    assert (totals["completed"], totals["claimed"]) == (1, 2)


async def test_a_renewal_cancel_retry_and_purge_do_no_harm(behind: RedisStore, proxy: Proxy) -> None:
    first, second = await submit(behind, a_job(), a_job())
    proxy.lose_replies()
    await register(behind)
    lease = await claim_one(behind)
    proxy.lose_replies()
    assert (await beat(behind, held=[lease])).lost == []
    proxy.lose_replies()
    assert await behind.cancel([first, second]) == [State.EXECUTING, State.CANCELLED]
    proxy.lose_replies()
    assert await behind.retry([second]) == [State.QUEUED]
    proxy.lose_replies()
    assert await end(behind, lease) in (ReportStatus.OK, ReportStatus.DUPLICATE)
    proxy.lose_replies()
    await behind.purge([State.COMPLETED], [first])
    assert proxy.lost == 6
    assert await recount(behind) == {State.QUEUED: 1}


async def test_a_document_is_written_once_and_its_version_told(behind: RedisStore, proxy: Proxy) -> None:
    proxy.lose_replies()
    assert await behind.write("policies", "p", b"1", if_version=0) == 1
    proxy.lose_replies()
    assert await behind.write("policies", "p", b"2", if_version=1) == 2
    proxy.lose_replies()
    assert await behind.write("policies", "p", b"3", if_version=1) is None
    proxy.lose_replies()
    assert await behind.write("policies", "p", None, if_version=2) == 3
    assert proxy.lost == 4
    assert await behind.read("policies") == []


async def test_a_transient_job_is_not_submitted_twice(behind: RedisStore, proxy: Proxy) -> None:
    # R2.45: at most once. Nothing is kept by which a repeated one could be known.
    proxy.lose_replies()
    with pytest.raises(StoreUnavailable, match="not known whether"):
        await submit(behind, a_job(persist=False))
    assert (await behind.stats()).lanes["medium"].waiting == 1
    proxy.cut()  # What never got through is sent all the same.

    async def is_cut() -> bool:
        return behind._client.connection is None

    await until(is_cut)
    await submit(behind, a_job(persist=False))
    assert (await behind.stats()).lanes["medium"].waiting == 2


@pytest.mark.usefixtures("hasty")
async def test_a_swallowed_reply_is_asked_for_on_another_connection(behind: RedisStore, proxy: Proxy) -> None:
    await submit(behind, *(a_job() for _ in range(3)))
    await register(behind)
    takes = plan(await behind.snapshot(), free=2, free_below=2, offers=frozenset(), policy=BUILT_IN)
    proxy.swallow_replies()
    answer = await behind.exchange(Exchange("w1", a_claim_id(), plan=takes))
    assert proxy.lost == 1
    assert len(answer.leases) == 2
    assert await recount(behind) == {State.QUEUED: 1, State.EXECUTING: 2}


@pytest.mark.usefixtures("hasty")
async def test_callers_less_patient_than_we_are_get_another_connection_too(behind: RedisStore, proxy: Proxy) -> None:
    # A heartbeat gives up after a second; the connection that does not answer must not outlive that.
    job_id = await submit_one(behind)
    proxy.swallow_replies()
    for _ in range(30):
        try:
            async with asyncio.timeout(0.05):
                assert [job.job_id for job in await behind.get([job_id]) if job] == [job_id]
                break
        except TimeoutError:
            continue
    else:
        pytest.fail("it went on asking a connection that does not answer")


async def test_a_lost_reply_to_the_loading_of_functions(behind: RedisStore, proxy: Proxy, server: Valkey) -> None:
    server.ask("FUNCTION", "FLUSH")
    proxy.lose_replies(2)
    job_id = await submit_one(behind)
    assert await state_of(behind, job_id) is State.QUEUED
    assert await recount(behind) == {State.QUEUED: 1}


@pytest.mark.slow
async def test_random_cuts_under_load_lose_and_double_nothing(
    behind: RedisStore, proxy: Proxy, server: Valkey, open_url: OpenStore, seed: int
) -> None:
    # I1, I2, I10: submitters and claimers behind a wire that is cut at random; all is counted from the other side.
    chance = random.Random(seed)
    acknowledged: list[JobId] = []
    ended: list[JobId] = []

    async def submitter() -> None:
        while proxy.lost < 10:
            acknowledged.extend(await submit(behind, *(a_job() for _ in range(chance.randrange(1, 6)))))

    async def worker(name: str) -> None:
        await register(behind, name)
        while not all(task.done() for task in submitters):
            for lease in await claim(behind, name, free=5):
                assert await end(behind, lease) in (ReportStatus.OK, ReportStatus.DUPLICATE)
                ended.append(lease.job_id)

    async def nemesis() -> None:
        while True:
            enough = len(acknowledged) + len(ended) + chance.randrange(1, 20)  # Cut by progress, not by time.
            await until(is_done(enough))
            if chance.random() < 0.5:
                proxy.lose_replies()
            else:
                proxy.cut()

    def is_done(enough: int) -> Callable[[], Awaitable[bool]]:
        async def done() -> bool:
            return len(acknowledged) + len(ended) >= enough

        return done

    async with asyncio.TaskGroup() as group:
        trouble = group.create_task(nemesis())
        submitters = [group.create_task(submitter()) for _ in range(3)]
        await asyncio.gather(*submitters, worker("w1"), worker("w2"))
        trouble.cancel()
    direct = await open_url(server.url)
    left = len(acknowledged) - len(ended)
    assert await recount(direct) == Counter({State.QUEUED: left, State.COMPLETED: len(ended)})
    ended += await drain(direct)
    assert sorted(ended) == sorted(set(acknowledged)), "a job was lost, or ran twice"
    assert {job.attempts for job in await direct.get(acknowledged) if job} == {1}
    assert (await direct.stats()).totals["submitted"] == len(acknowledged)
