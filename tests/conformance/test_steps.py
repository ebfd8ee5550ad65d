"""Steps: results that a running job stores under a key for its next attempt."""

from __future__ import annotations

import pytest

from headway.core.errors import StepError
from headway.core.lease import Lease
from headway.core.policy.document import Keep
from headway.core.policy.retry import Raised
from headway.core.workflow import STEP_BYTES_MAX, STEPS_BYTES_MAX, STEPS_MAX, Step
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import BOOM, an_id, claim_one, end, register, submit_one


def a_step(lease: Lease, key: str, value: bytes = b"1") -> Step:
    return Step(lease.job_id, lease.seq, lease.token, key, value)


async def test_a_step_outlives_the_attempt_that_kept_it(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    assert await store.record_step(a_step(lease, "fetch", b'"page"'))
    assert await store.record_step(a_step(lease, "parse", b"[1]"))
    await end(store, lease, Raised(BOOM))
    assert list((await store.steps(job_id)).items()) == [("fetch", b'"page"'), ("parse", b"[1]")]


async def test_the_first_value_of_a_step_stays(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    assert await store.record_step(a_step(lease, "fetch", b"1"))
    assert await store.record_step(a_step(lease, "fetch", b"2"))
    assert await store.steps(job_id) == {"fetch": b"1"}


async def test_a_lost_lease_keeps_no_step(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    assert not await store.record_step(a_step(lease._replace(token=b"x" * 16), "fetch"))
    await end(store, lease)
    assert not await store.record_step(a_step(lease, "fetch"))
    assert not await store.record_step(Step(an_id(), 999, b"x" * 16, "fetch", b"1"))
    assert await store.steps(job_id) == {}


async def test_steps_are_bounded(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    with pytest.raises(StepError) as large:
        await store.record_step(a_step(lease, "large", b"x" * (STEP_BYTES_MAX + 1)))
    assert large.value.code == "step"
    fitting = STEPS_BYTES_MAX // STEP_BYTES_MAX
    for number in range(fitting):
        await store.record_step(a_step(lease, f"s{number}", b"x" * STEP_BYTES_MAX))
    with pytest.raises(StepError):
        await store.record_step(a_step(lease, "more"))
    assert len(await store.steps(job_id)) == fitting


async def test_steps_are_counted(store: Store) -> None:
    await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    for number in range(STEPS_MAX):
        await store.record_step(a_step(lease, f"s{number}"))
    with pytest.raises(StepError):
        await store.record_step(a_step(lease, "more"))


async def test_steps_go_with_their_job(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await store.record_step(a_step(lease, "fetch"))
    await end(store, lease)
    clock.advance(ms=3 * 86_400_000)
    await store.prune(Keep())
    assert await store.steps(job_id) == {}
