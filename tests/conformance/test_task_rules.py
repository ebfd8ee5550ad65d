"""Policy for one task: its tenants and limits, without a change of its code."""

from __future__ import annotations

from typing import Any

import pytest

from headway import Headway, Limit
from headway.core.job import JobId
from headway.core.policy.document import Policy
from headway.core.policy.reader import read_policy
from headway.core.policy.retry import Returned
from headway.policy_store.rule_documents import declare_limits
from headway.policy_store.versions import apply_policy
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import claim, end, register, submit


def export(account: str, page: int = 0) -> None:
    """A task whose author did not declare tenants or limits."""


async def apply(store: Store, clock: ManualClock, rule: dict[str, Any]) -> Policy:
    policy = read_policy({"tasks": {"export": rule}}, where="test")
    await apply_policy(store, policy, now_at=clock.now_at)
    return policy


async def send(store: Store, policy: Policy, *accounts: str, **options: Any) -> list[JobId]:
    """Submit one job for each account, as an app with this policy does."""
    async with Headway("memory://") as app:
        task = app.task(name="export", **options)(export)
        app.in_force.policy = policy
        return await submit(store, *(task.call(account).new for account in accounts))


async def test_a_task_is_shared_among_the_tenants_that_the_policy_names(store: Store, clock: ManualClock) -> None:
    policy = await apply(store, clock, {"fair_by": "account"})
    await register(store, slots=4, reserved=0)
    await send(store, policy, "big", "big", "big", "big", "big", "small")
    assert sorted(str(lease.tenant) for lease in await claim(store, free=2)) == ["big", "small"]


async def test_a_limit_in_the_policy_counts_each_value_of_a_parameter(store: Store, clock: ManualClock) -> None:
    policy = await apply(store, clock, {"limits": [{"concurrency": 1, "by": "account"}]})
    await register(store, slots=4, reserved=0)
    first, second, third = await send(store, policy, "a", "a", "b")
    leases = await claim(store, free=4)
    assert {lease.job_id for lease in leases} == {first, third}
    await end(store, next(lease for lease in leases if lease.job_id == first), Returned(None))
    assert [lease.job_id for lease in await claim(store, free=4)] == [second]


async def test_a_limit_of_the_task_alone_applies_to_jobs_that_wait_already(store: Store, clock: ManualClock) -> None:
    await register(store, slots=4, reserved=0)
    before = await send(store, read_policy({}, where="test"), "a", "b", "c")
    await apply(store, clock, {"limits": [{"concurrency": 1}]})
    assert [lease.job_id for lease in await claim(store, free=4)] == before[:1]


async def test_a_limit_in_the_policy_replaces_the_declared_one_of_its_kind(store: Store, clock: ManualClock) -> None:
    declared = Limit(concurrency=1)
    await declare_limits(store, "export", {declared.name("export"): declared.rule("export")})
    policy = await apply(store, clock, {"limits": [{"concurrency": 3}]})
    await register(store, slots=5, reserved=0)
    await send(store, policy, "a", "b", "c", "d", limits=[declared])
    assert len(await claim(store, free=5)) == 3


@pytest.mark.parametrize("persist", [True, False])
def test_the_policy_overrides_fair_by_of_the_decorator_but_not_for_transient_jobs(persist: bool) -> None:
    with Headway("memory://") as app:
        task = app.task(name="export", persist=persist)(export)
        app.in_force.policy = read_policy({"tasks": {"export": {"fair_by": "page"}}}, where="test")
        assert task.call("a", 7).new.tenant == ("7" if persist else None)
