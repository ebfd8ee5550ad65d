"""Namespaces: two of them on one server or in one folder share nothing."""

from __future__ import annotations

import pytest

from headway.core.errors import BadEdge, BatchNotFound
from headway.core.job import State
from headway.core.policy.document import DAY, Keep
from headway.core.workflow import BatchQuery
from headway.stores.base import Document, JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    LEASE_MS,
    a_job,
    ask,
    claim,
    claim_one,
    claimed_ids,
    end,
    ended_job,
    register,
    state_of,
    submit_one,
)
from tests.conformance.workflows import a_batch, add, node, submit_batch, submit_graph, the_batch
from tests.conftest import OpenStore


@pytest.fixture
async def other(open_namespace: OpenStore, store: Store) -> Store:
    """Return another namespace beside the store's own."""
    assert store.namespace == "default"
    return await open_namespace("other")


async def test_a_job_is_seen_and_claimed_in_its_own_namespace_only(store: Store, other: Store) -> None:
    job_id = await submit_one(store)
    assert await other.get([job_id]) == [None]
    assert await other.find(JobQuery()) == []
    assert await other.cancel([job_id]) == await other.retry([job_id]) == [None]
    assert [view for view in (await other.snapshot()).classes if view.waiting] == []
    await register(other, "theirs")
    assert await claim(other, "theirs") == []
    await register(store, "ours")
    assert await claimed_ids(store, "ours") == [job_id]


async def test_one_id_may_stand_for_a_job_in_each(store: Store, other: Store) -> None:
    # An acknowledged job must not be lost to a namesake elsewhere.
    job = a_job()
    await submit_one(store, job)
    await submit_one(other, job._replace(payload=b"theirs", digest=b"theirs"))
    await store.cancel([job.job_id])
    assert await state_of(store, job.job_id) is State.CANCELLED
    assert await state_of(other, job.job_id) is State.QUEUED
    await register(other, "theirs")
    assert (await claim_one(other, "theirs")).payload == b"theirs"


async def test_keys_are_their_own(store: Store, other: Store) -> None:
    for job in (a_job(idempotency_key="k"), a_job(unique_key="u")):
        await submit_one(store, job)
        theirs = a_job(idempotency_key=job.idempotency_key, unique_key=job.unique_key, payload=b"theirs")
        assert await submit_one(other, theirs) == theirs.job_id
        await other.cancel([theirs.job_id])
        assert await submit_one(store, job._replace(job_id=a_job().job_id)) == job.job_id


async def test_workers_and_leases_are_their_own(store: Store, other: Store, clock: ManualClock) -> None:
    await submit_one(store)
    await register(store, "ours")
    await claim_one(store, "ours")
    assert (await other.stats()).workers == ()
    assert not await other.drain("ours")
    await other.mark_dead("ours")
    assert (await ask(store, "ours")).worker_state == "active"
    clock.advance(ms=LEASE_MS)
    assert await other.leases() == await other.leases(worker_id="ours") == []
    assert len(await store.leases()) == 1


async def test_a_worker_of_one_gets_nothing_in_the_other(store: Store, other: Store) -> None:
    await submit_one(other)
    await register(store, "ours")
    assert await claim(other, "ours") == []


async def test_documents_are_their_own(store: Store, other: Store) -> None:
    await store.write("policy", "main", b"ours")
    assert await other.read("policy") == []
    assert await other.write("policy", "main", b"theirs", if_version=0) == 1
    assert await store.read("policy") == [Document("policy", "main", 1, b"ours")]


async def test_numbers_are_their_own(store: Store, other: Store) -> None:
    await ended_job(store, State.FAILED)
    stats = await other.stats()
    assert (stats.totals, stats.last_minute, stats.kept) == ({}, {}, {})


async def test_pruning_and_purging_touch_their_own_only(store: Store, other: Store, clock: ManualClock) -> None:
    for state in (State.COMPLETED, State.FAILED):
        job_id = await ended_job(store, state)
        clock.advance(ms=40 * DAY)
        assert await other.prune(Keep()) == 0
        assert await other.purge([state], None) == await other.purge([state], [job_id]) == 0
        assert await state_of(store, job_id) is state
    assert await store.prune(Keep()) == 2


async def test_transient_jobs_are_their_own(store: Store, other: Store) -> None:
    await submit_one(store, a_job(persist=False))
    await register(other, "theirs")
    assert await claim(other, "theirs") == []


async def test_a_namespace_opened_again_is_the_same_where_others_may_open_it(
    store: Store, open_namespace: OpenStore
) -> None:
    job_id = await submit_one(store)
    again = await open_namespace("default")
    if not again.abilities.shared:  # A store that lives in one instance starts empty in each.
        assert await again.get([job_id]) == [None]
        return
    assert await state_of(again, job_id) is State.QUEUED
    await register(again)
    lease = await claim_one(again)
    await end(store, lease)
    assert await state_of(again, job_id) is State.COMPLETED


async def test_a_graph_reaches_into_its_own_namespace_only(store: Store, other: Store) -> None:
    job_id, (batch_id, _) = await submit_one(store), await submit_batch(store, 1, key="same", open=True)
    mine = node()
    for wrong in (node(job_id), node(batch_id), node(batch_id, member=False)):
        with pytest.raises(BadEdge) as refused:
            await submit_graph(other, mine, wrong)
        assert (refused.value.code, refused.value.facts["index"]) == ("bad_edge", 1)
    with pytest.raises(BatchNotFound):
        await add(other, batch_id, mine)
    with pytest.raises(BatchNotFound):
        await submit_graph(other, mine, create=a_batch(parent=batch_id))
    assert await other.cancel_batch(batch_id) is await other.close_batch(batch_id) is None
    assert (await other.get([mine.job.job_id]), await other.find_batches(BatchQuery())) == ([None], [])
    theirs, _ = await submit_batch(other, 1, key="same")
    assert theirs != batch_id
    assert (await the_batch(store, batch_id)).total == 1
