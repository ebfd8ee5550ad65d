"""Reads that skip dead rows nevertheless see all live rows."""

from __future__ import annotations

import pytest

from headway.core.job import State
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Released, Returned, judge
from headway.stores.base import Exchange
from headway.stores.postgres import scan_hints
from headway.stores.postgres.store import PostgresStore
from tests.conformance.builders import a_job, claim, claim_one, end, register, submit_one, the_job
from tests.stores.postgres.conftest import OpenStore


async def waiting(store: PostgresStore) -> int:
    return sum(view.waiting for view in (await store.snapshot()).classes)


@pytest.fixture
def slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every snapshot after the first start at the first jobs that the first one found."""
    monkeypatch.setattr(scan_hints, "SLOW", 0.0)
    monkeypatch.setattr(scan_hints, "SHARE", 10**9)


@pytest.mark.usefixtures("slow_looks")
async def test_a_picture_shows_a_job_that_went_back_to_before_the_first(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    for _ in range(3):
        await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    assert await waiting(store) == 2
    await end(store, lease, Released("drained"))
    assert await waiting(store) == 3
    await submit_one(store)
    assert await waiting(store) == 4
    await claim(store, free=4)
    assert await waiting(store) == 0


@pytest.mark.usefixtures("slow_looks")
async def test_a_picture_shows_a_tenant_that_comes_before_those_who_wait(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    for _ in range(4):
        await submit_one(store, a_job(tenant="acme"))
    await register(store)
    await claim_one(store)
    assert await waiting(store) == 3
    await submit_one(store, a_job(tenant="other"))
    assert await waiting(store) == 4


def test_whole_pictures_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("headway.stores.postgres.scan_hints.time.monotonic", lambda: now)
    known = scan_hints.ScanHints()
    known.note({1: (7, 0)}, lasted=scan_hints.SLOW / 2)
    assert known.known() == ([], [], [])  # Quick ones are always whole.
    known.note({2: (9, 3)}, lasted=1.0)
    assert known.known() == ([1, 2], [7, 9], [0, 3])
    now += scan_hints.SHARE - 1
    assert known.known() == ([1, 2], [7, 9], [0, 3])
    now += 1
    assert known.known() == ([], [], [])


async def test_a_survey_names_leases_of_lower_numbers_than_it_saw_before(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    await submit_one(store, a_job(lane="low"))
    await submit_one(store, a_job(lane="high"))
    await register(store)
    high = await claim_one(store)
    assert [job.lane for job in (await store.diagnose()).executing] == ["high"]
    await claim_one(store)
    assert [job.lane for job in (await store.diagnose()).executing] == ["low", "high"]
    await end(store, high)
    assert [job.lane for job in (await store.diagnose()).executing] == ["low"]


async def test_reports_of_several_claims_come_in_any_order(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    for _ in range(5):
        await submit_one(store)
    await register(store)
    first, second = await claim(store, free=3), await claim(store, free=2)
    results = {lease.job_id: b"%d" % number for number, lease in enumerate([*first, *second])}
    stale = first[1]._replace(token=second[0].token)  # Of the same batch, but not of this job.
    leases = [second[1], first[2], stale, second[0], first[0]]
    reports = [judge(Returned(results[lease.job_id]), lease, BUILT_IN) for lease in leases]
    answer = await store.exchange(Exchange("w1", finished=reports))
    assert answer.refused == [(stale.job_id, ReportStatus.STALE)]
    for lease in leases:
        job = await the_job(store, lease.job_id)
        ended = (State.EXECUTING, None) if lease is stale else (State.COMPLETED, results[lease.job_id])
        assert (job.state, job.result) == ended


async def test_a_batch_with_a_job_that_is_known_keeps_the_others(open_url: OpenStore, url: str) -> None:
    store = await open_url(url)
    await submit_one(store)
    await store.submit([a_job("one"), a_job("two")])
    await store.submit([a_job("two"), a_job("three")])
    assert await waiting(store) == 4
