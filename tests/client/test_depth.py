"""A queue refuses jobs once it is as long as the policy allows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.client import depth
from headway.client.depth import QueueDepth
from headway.core.errors import QueueFull
from headway.core.job import NewJob
from headway.core.policy.document import BUILT_IN, Tenants
from headway.stores.base import Store
from tests.conformance.builders import a_job, claim, register, submit, submit_one

FOUR, ONE = replace(BUILT_IN, max_depth=4), replace(BUILT_IN, max_depth=1)


def jobs(count: int, tenant: str | None = None) -> list[NewJob]:
    return [a_job(tenant=tenant) for _ in range(count)]


async def test_no_more_jobs_are_admitted_than_may_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "COUNT_EVERY", 1_000.0)
    await submit(store, a_job(), a_job())
    gauge = QueueDepth()
    await gauge.admit(store, jobs(2), FOUR)
    with pytest.raises(QueueFull, match="4 jobs wait, and the policy allows 4"):
        await gauge.admit(store, jobs(1), FOUR)
    with pytest.raises(QueueFull):  # Whole or not at all.
        await QueueDepth().admit(store, jobs(3), FOUR)


async def test_what_has_left_the_queue_makes_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "COUNT_EVERY", 0.0)
    gauge = QueueDepth()
    await gauge.admit(store, jobs(1), ONE)
    job_id = await submit_one(store)
    with pytest.raises(QueueFull):
        await gauge.admit(store, jobs(1), ONE)
    await store.cancel([job_id])
    await gauge.admit(store, jobs(1), ONE)


async def test_a_tenant_that_fills_its_own_depth_stops_nobody_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # J9, S-20
    monkeypatch.setattr(depth, "COUNT_EVERY", 1_000.0)
    policy = replace(BUILT_IN, max_depth=9, tenants=Tenants(max_depth=2, max_depths={"big": 3, "free": 0}))
    await submit(store, *jobs(1, "acme"), *jobs(1))
    gauge = QueueDepth()
    await gauge.admit(store, jobs(1, "acme"), policy)
    with pytest.raises(QueueFull, match=r"2 jobs of tenant acme wait, and the policy allows 2 \(tenants.max_depth\)"):
        await gauge.admit(store, jobs(1, "acme"), policy)
    with pytest.raises(QueueFull, match="tenant acme"):  # Whole or not at all: bolt's are not counted.
        await gauge.admit(store, [*jobs(2, "bolt"), *jobs(1, "acme")], policy)
    await gauge.admit(store, jobs(2, "bolt"), policy)
    await gauge.admit(store, jobs(2, "big"), policy)
    with pytest.raises(QueueFull, match="tenant big"):
        await gauge.admit(store, jobs(2, "big"), policy)
    await gauge.admit(store, [*jobs(1, "free"), *jobs(1)], policy)
    with pytest.raises(QueueFull, match=r"9 jobs wait, and the policy allows 9 \(max_depth\)"):
        await gauge.admit(store, jobs(1, "free"), policy)


async def test_a_tenants_jobs_that_run_make_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "COUNT_EVERY", 0.0)
    policy = replace(BUILT_IN, tenants=Tenants(max_depth=1))
    gauge = QueueDepth()
    await submit(store, *jobs(1, "acme"))
    with pytest.raises(QueueFull):
        await gauge.admit(store, jobs(1, "acme"), policy)
    await register(store)
    await claim(store, free=1)
    await gauge.admit(store, jobs(1, "acme"), policy)
