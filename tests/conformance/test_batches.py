"""Batches: counted sets of jobs that can grow while any member lives."""

from __future__ import annotations

import pytest

from headway.core.errors import BadEdge, BatchClosed, BatchNotFound, CycleError, JobError
from headway.core.job import State
from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.retry import Raised, Returned, judge
from headway.core.workflow import SETTLED_MAX, BatchQuery, BatchRecord, EdgeRule, Graph, Step
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    CONFIRM_MS,
    a_job,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    report,
    submit_one,
    the_job,
)
from tests.conformance.workflows import (
    FAILED,
    a_batch,
    a_batch_id,
    add,
    are_held,
    node,
    run,
    run_all,
    states,
    submit_batch,
    submit_graph,
    submit_node,
    the_batch,
)

DAY_MS = 86_400_000


def counts(batch: BatchRecord) -> tuple[int, int, int, int, int, int, int]:
    return batch.total, batch.held, batch.waiting, batch.running, batch.completed, batch.failed, batch.cancelled


async def test_a_batch_counts_its_members_from_submit_to_end(store: Store, clock: ManualClock) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 3)
    held = node(ids[0])
    await add(store, batch_id, held)
    created_at = clock()
    batch = await the_batch(store, batch_id)
    assert counts(batch) == (4, 1, 3, 0, 0, 0, 0)
    assert (batch.status, batch.created_at, batch.finished_at, batch.round) == ("running", created_at, None, 1)
    leases = await claim(store, free=2)
    assert [lease.batch_id for lease in leases] == [batch_id, batch_id]
    assert counts(await the_batch(store, batch_id)) == (4, 1, 1, 2, 0, 0, 0)
    await end(store, leases[0])
    await end(store, leases[1], FAILED)
    assert counts(await the_batch(store, batch_id)) == (4, 0, 2, 0, 1, 1, 0)
    await store.cancel([ids[2]])
    clock.advance(ms=5)
    assert await run_all(store) == [held.job.job_id]
    batch = await the_batch(store, batch_id)
    assert counts(batch) == (4, 0, 0, 0, 2, 1, 1)
    assert (batch.status, batch.finished_at) == ("failed", clock())
    assert (await the_job(store, ids[0])).batch_id == batch_id


async def test_a_batch_is_open_until_it_is_closed(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1, open=True)
    done = await submit_node(store, batch_id, member=False)
    await run(store, *ids)
    batch = await the_batch(store, batch_id)
    assert (batch.status, batch.live, batch.finished_at) == ("open", 0, None)
    assert await are_held(store, done)
    [more] = (await add(store, batch_id)).replies
    closed = await store.close_batch(batch_id)
    assert closed is not None
    assert closed.status == "running"
    assert await run_all(store) == [more.job_id, done]
    assert (await the_batch(store, batch_id)).status == "completed"
    assert await store.close_batch(batch_id) == await the_batch(store, batch_id)
    assert await store.close_batch(a_batch_id()) is None


async def test_an_empty_batch_fires_when_it_is_closed(store: Store) -> None:
    await register(store)
    batch_id, _ = await submit_batch(store, 0, open=True)
    done = await submit_node(store, batch_id, member=False)
    failed = await submit_node(store, batch_id, rule=EdgeRule.ON_FAILURE, member=False)
    await store.close_batch(batch_id)
    assert await states(store, failed) == [State.CANCELLED]
    assert await claimed_ids(store) == [done]
    empty, _ = await submit_batch(store, 0)
    assert (await the_batch(store, empty)).status == "completed"


async def test_then_runs_when_all_have_completed(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 3)
    done = await submit_node(store, batch_id, member=False)
    await run(store, *ids[:2])
    assert await are_held(store, done)
    diagnosis = await store.diagnose_job(done)
    assert diagnosis is not None
    [upstream] = diagnosis.upstreams
    assert (upstream.source, upstream.name, upstream.live, upstream.total) == (batch_id, "import", 1, 3)
    await run(store, ids[2])
    assert await claimed_ids(store) == [done]


async def test_callbacks_fire_once_after_a_failure(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 3)
    then = await submit_node(store, batch_id, member=False)
    on_failure = await submit_node(store, batch_id, rule=EdgeRule.ON_FAILURE, member=False)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    await run(store, ids[0], ending=FAILED)
    assert [await are_held(store, one) for one in (then, on_failure, on_done)] == [True, False, True]
    await run(store, ids[1], ending=FAILED)
    await run(store, ids[2])
    assert await states(store, then) == [State.CANCELLED]
    assert (await the_job(store, then)).reason == f"upstream {batch_id}"
    assert sorted(await run_all(store)) == sorted([on_failure, on_done])


async def test_a_batch_without_failure_never_runs_on_failure(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 2)
    on_failure = await submit_node(store, batch_id, rule=EdgeRule.ON_FAILURE, member=False)
    assert await run_all(store) == ids
    assert await states(store, on_failure) == [State.CANCELLED]


async def test_a_member_adds_to_its_batch_while_it_lives(store: Store) -> None:
    await register(store)
    batch_id, [first] = await submit_batch(store, 1)
    then = await submit_node(store, batch_id, member=False)
    lease = await claim_one(store)
    [more] = (await add(store, batch_id)).replies
    await end(store, lease)
    assert await are_held(store, then)
    assert await run_all(store) == [more.job_id, then]
    assert [job.job_id for job in await store.members(batch_id)] == [first, more.job_id]


async def test_a_batch_that_has_ended_takes_no_more_jobs(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1)
    await run(store, *ids)
    late = node()
    with pytest.raises(BatchClosed) as closed:
        await add(store, batch_id, late)
    assert closed.value.code == "batch_closed"
    assert await store.get([late.job.job_id]) == [None]
    with pytest.raises(BatchNotFound):
        await add(store, a_batch_id())
    with pytest.raises(BatchClosed):
        await store.submit_graph(Graph((), a_batch(parent=batch_id)))
    with pytest.raises(BatchNotFound):
        await store.submit_graph(Graph((), a_batch(parent=a_batch_id())))


async def test_a_key_returns_the_batch_that_exists(store: Store) -> None:
    first = a_batch(key="import-7", tenant="acme")
    one = await store.submit_graph(Graph((node(job=a_job(tenant="acme")),), first))
    two = await store.submit_graph(Graph((node(job=a_job(tenant="acme")),), a_batch(key="import-7", tenant="acme")))
    other = await store.submit_graph(Graph((), a_batch(key="import-7", tenant="globex")))
    assert (one.batch_id, one.created) == (first.batch_id, True)
    assert (two.batch_id, two.created) == (first.batch_id, False)
    assert (other.batch_id == first.batch_id, other.created) == (False, True)
    assert (await the_batch(store, first.batch_id)).total == 2


async def test_a_batch_that_is_submitted_twice_counts_once(store: Store) -> None:
    await register(store)
    graph = Graph((node(), node()), a_batch(open=False))
    reply = await store.submit_graph(graph)
    assert await store.submit_graph(graph) == reply
    assert reply.batch_id is not None
    assert (await the_batch(store, reply.batch_id)).total == 2
    await run_all(store)
    await store.submit_graph(graph)  # The reply to the first call was lost for a long time.
    assert (await the_batch(store, reply.batch_id)).status == "completed"


async def test_a_member_that_exists_already_is_not_counted(store: Store) -> None:
    known = await submit_one(store, a_job(unique_key="only"))
    reply = await store.submit_graph(Graph((node(job=a_job(unique_key="only")), node()), a_batch()))
    assert reply.batch_id is not None
    assert reply.replies[0].job_id == known
    assert (await the_batch(store, reply.batch_id)).total == 1
    assert (await the_job(store, known)).batch_id is None


async def test_a_report_that_comes_twice_counts_once(store: Store) -> None:
    await register(store)
    batch_id, _ = await submit_batch(store, 2)
    lease = await claim_one(store)
    once = judge(Returned(b"1"), lease, BUILT_IN)
    await report(store, once)
    await report(store, once)
    await report(store, once._replace(token=b"x" * 16))
    assert counts(await the_batch(store, batch_id)) == (2, 0, 1, 0, 1, 0, 0)


async def test_several_endings_of_one_exchange_are_counted(store: Store) -> None:
    await register(store, slots=50)
    batch_id, ids = await submit_batch(store, 20)
    then = await submit_node(store, batch_id, member=False)
    leases = await claim(store, free=20)
    await report(store, *(judge(Returned(b"1"), lease, BUILT_IN) for lease in leases))
    assert counts(await the_batch(store, batch_id)) == (20, 0, 0, 0, 20, 0, 0)
    assert await claimed_ids(store) == [then]
    assert len(ids) == 20


async def test_a_node_that_a_graph_names_twice_is_one_member(store: Store) -> None:
    one = node()
    reply = await store.submit_graph(Graph((one, one), a_batch(open=False)))
    assert [answer.job_id for answer in reply.replies] == [one.job.job_id] * 2
    assert reply.batch_id is not None
    assert counts(await the_batch(store, reply.batch_id)) == (1, 0, 1, 0, 0, 0, 0)


@pytest.mark.parametrize("rule", list(EdgeRule))
async def test_a_member_cannot_wait_for_its_batch_or_for_a_parent_of_that(store: Store, rule: EdgeRule) -> None:
    parent, _ = await submit_batch(store, 0, open=True)
    new = a_batch(parent=parent)
    for source in (new.batch_id, parent):
        with pytest.raises(CycleError) as cycle:
            await store.submit_graph(Graph((node(), node(source, rule=rule)), new))
        assert cycle.value.facts["index"] == 1
    with pytest.raises(CycleError):
        await add(store, parent, node(parent, rule=rule))
    assert await store.get_batches([new.batch_id]) == [None]
    assert (await store.stats()).lanes == {}
    [callback] = await submit_graph(store, node(new.batch_id, rule=rule, member=False), create=new)
    assert await are_held(store, callback)


async def test_a_lease_that_a_heartbeat_ends_is_counted(store: Store, clock: ManualClock) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    await claim_one(store)
    await store.cancel(ids)
    clock.advance(ms=CONFIRM_MS)
    await beat(store)  # The worker does not know of the lease, since the answer to its claim was lost.
    assert await states(store, *ids) == [State.CANCELLED]
    assert counts(await the_batch(store, batch_id)) == (1, 0, 0, 0, 0, 0, 1)
    assert await claimed_ids(store) == [on_done]


# ---------------------------------------------------------------------- nested batches


async def test_a_child_batch_counts_as_one_member(store: Store) -> None:
    await register(store)
    parent, ids = await submit_batch(store, 1)
    child, inner = await submit_batch(store, 2, parent=parent)
    then = await submit_node(store, parent, member=False)
    batch = await the_batch(store, parent)
    assert (batch.total, batch.live, batch.children, batch.waiting) == (2, 2, 1, 1)
    await run(store, *ids)
    assert await are_held(store, then)
    await run(store, *inner)
    assert (await the_batch(store, child)).status == "completed"
    assert (await the_batch(store, parent)).completed == 2
    assert await claimed_ids(store) == [then]


async def test_a_child_batch_that_fails_fails_its_parent(store: Store) -> None:
    await register(store)
    parent, _ = await submit_batch(store, 0, open=True)
    _, inner = await submit_batch(store, 1, parent=parent)
    on_failure = await submit_node(store, parent, rule=EdgeRule.ON_FAILURE, member=False)
    await run(store, *inner, ending=FAILED)
    await store.close_batch(parent)
    batch = await the_batch(store, parent)
    assert (batch.status, batch.failed, batch.failing) == ("failed", 1, True)
    assert await claimed_ids(store) == [on_failure]
    await store.retry(inner)
    batch = await the_batch(store, parent)
    assert (batch.status, batch.failed, batch.live, batch.round) == ("running", 0, 1, 2)


# ---------------------------------------------------------------------- rounds


async def test_a_retry_begins_a_new_round_in_which_callbacks_fire_again(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 2)
    then = await submit_node(store, batch_id, member=False)
    after_then = await submit_node(store, then)
    on_failure = await submit_node(store, batch_id, rule=EdgeRule.ON_FAILURE, member=False)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    plain = await submit_node(store, batch_id, rule=EdgeRule.RUN, member=False)
    first = await run_all(store, failing=frozenset(ids[:1]))
    assert sorted(first) == sorted([*ids, on_failure, on_done, plain])
    assert await states(store, then, after_then) == [State.CANCELLED, State.CANCELLED]
    assert await store.retry(ids[:1]) == [State.QUEUED]
    batch = await the_batch(store, batch_id)
    assert (batch.status, batch.round, batch.failing, batch.failed, batch.live) == ("running", 2, False, 0, 1)
    assert await are_held(store, then, after_then, on_failure, on_done)
    second = await run_all(store)
    assert second[0] == ids[0]
    assert sorted(second[1:]) == sorted([on_done, then, after_then])
    assert await states(store, on_failure, plain) == [State.CANCELLED, State.COMPLETED]
    assert (await the_batch(store, batch_id)).status == "completed"


async def test_on_failure_fires_in_each_round_with_a_failure(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 2)
    on_failure = await submit_node(store, batch_id, rule=EdgeRule.ON_FAILURE, member=False)
    assert sorted(await run_all(store, failing=frozenset(ids))) == sorted([*ids, on_failure])
    await store.retry(ids[:1])
    assert await run_all(store, failing=frozenset(ids)) == [ids[0], on_failure]
    assert (await the_job(store, on_failure)).epoch == 2


async def test_a_retry_within_a_live_batch_begins_no_round(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 2)
    then = await submit_node(store, batch_id, member=False)
    await run(store, ids[0], ending=FAILED)
    await store.retry(ids[:1])
    batch = await the_batch(store, batch_id)
    assert (batch.round, batch.failed, batch.live) == (1, 0, 2)
    assert sorted((await run_all(store))[:2]) == sorted(ids)
    assert await states(store, then) == [State.COMPLETED]


async def test_members_of_a_cancelled_batch_wait_for_each_other_again_when_they_are_retried(store: Store) -> None:
    await register(store)
    batch_id, [first] = await submit_batch(store, 1, open=True)
    second = node(first)
    await add(store, batch_id, second, node(second.job.job_id))
    await store.cancel_batch(batch_id)
    members = await store.members(batch_id)
    assert [job.state for job in members] == [State.CANCELLED] * 3
    await store.retry([job.job_id for job in members])
    batch = await the_batch(store, batch_id)
    assert (counts(batch), batch.live, batch.round) == ((3, 2, 1, 0, 0, 0, 0), 3, 2)
    assert await run_all(store) == [job.job_id for job in members]
    assert counts(await the_batch(store, batch_id)) == (3, 0, 0, 0, 3, 0, 0)


async def test_a_callback_that_has_not_started_waits_for_the_new_round(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    await run(store, *ids, ending=FAILED)
    assert await states(store, on_done) == [State.QUEUED]
    await store.retry(ids)
    assert await are_held(store, on_done)
    assert await run_all(store) == [*ids, on_done]


@pytest.mark.parametrize("first", ["callback", "round"])
async def test_a_callback_that_runs_when_a_new_round_begins_runs_again_for_it(store: Store, first: str) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    await run(store, *ids, ending=FAILED)
    lease = await claim_one(store)
    assert lease.job_id == on_done
    await store.retry(ids)
    assert await states(store, on_done) == [State.EXECUTING]
    if first == "callback":
        await end(store, lease)
        assert await are_held(store, on_done)
        assert await run_all(store) == [*ids, on_done]
    else:
        await run(store, *ids)
        await end(store, lease)
        assert await run_all(store) == [on_done]
    assert (await the_job(store, on_done)).epoch == 2
    assert await states(store, on_done) == [State.COMPLETED]


async def test_a_callback_begins_a_round_without_the_steps_of_the_round_before(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    await run(store, *ids, ending=FAILED)
    lease = await claim_one(store)
    assert await store.record_step(Step(lease.job_id, lease.seq, lease.token, "mail", b"1"))
    await end(store, lease)
    assert await store.steps(on_done) == {"mail": b"1"}
    await store.retry(ids)
    assert await store.steps(on_done) == {}


async def test_members_of_a_cancelled_batch_can_be_retried_once_it_has_ended(store: Store) -> None:
    await register(store)
    parent, _ = await submit_batch(store, 0, open=True)
    batch_id, ids = await submit_batch(store, 2, parent=parent)
    await store.cancel_batch(parent)
    assert [(await the_batch(store, one)).live for one in (parent, batch_id)] == [0, 0]
    assert await store.retry(ids[:1]) == [State.QUEUED]
    for one in (parent, batch_id):
        batch = await the_batch(store, one)
        assert (batch.round, batch.cancel_requested_at, batch.live) == (2, None, 1)
    assert await run_all(store) == ids[:1]
    assert await states(store, *ids) == [State.COMPLETED, State.CANCELLED]


# ---------------------------------------------------------------------- cancelling


async def test_cancelling_a_batch_ends_its_members_and_its_dependants(store: Store, clock: ManualClock) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 3, open=True)
    await add(store, batch_id, held := node(ids[2]))
    then = await submit_node(store, batch_id, member=False)
    on_failure = await submit_node(store, batch_id, rule=EdgeRule.ON_FAILURE, member=False)
    on_done = await submit_node(store, batch_id, rule=EdgeRule.ON_DONE, member=False)
    lease = await claim_one(store)
    cancelled = await store.cancel_batch(batch_id)
    assert cancelled is not None
    assert (cancelled.open, cancelled.cancel_requested_at, cancelled.live) == (False, clock(), 1)
    assert await states(store, *ids, held.job.job_id) == [State.EXECUTING, *[State.CANCELLED] * 3]
    assert (await the_job(store, ids[1])).reason == f"batch {batch_id}"
    assert (await the_job(store, ids[0])).cancel_requested_at == clock()
    with pytest.raises(BatchClosed):
        await add(store, batch_id)
    await end(store, lease)
    batch = await the_batch(store, batch_id)
    assert (batch.status, batch.live, batch.failing) == ("cancelled", 0, False)
    assert await states(store, then, on_failure) == [State.CANCELLED, State.CANCELLED]
    assert await claimed_ids(store) == [on_done]
    assert await store.cancel_batch(a_batch_id()) is None


async def test_nothing_of_a_cancelled_batch_starts_however_large_it_is(store: Store) -> None:
    await register(store, slots=1_000)
    batch_id, ids = await submit_batch(store, SETTLED_MAX + 50)
    other = await submit_one(store)
    await store.cancel_batch(batch_id)
    assert sum(state is State.CANCELLED for state in await states(store, *ids)) == SETTLED_MAX
    assert await run_all(store) == [other]
    batch = await the_batch(store, batch_id)
    assert (batch.cancelled, batch.live, batch.status) == (len(ids), 0, "cancelled")


async def test_a_claim_meets_no_member_of_a_cancelled_batch_that_is_not_cancelled_yet(store: Store) -> None:
    await register(store)
    low = [node(job=a_job(lane="low")) for _ in range(4 * SETTLED_MAX)]
    first = node(job=a_job(lane="high"))  # A claim takes it first, and the cancellation reaches it last.
    batch_id = a_batch_id()
    await store.submit_graph(Graph([*low, first], a_batch(open=False)._replace(batch_id=batch_id)))
    await store.cancel_batch(batch_id)
    assert await states(store, first.job.job_id) == [State.QUEUED]
    assert await claim(store, free=1) == []
    job = await the_job(store, first.job.job_id)
    assert (job.state, job.reason) == (State.CANCELLED, f"batch {batch_id}")
    assert await run_all(store) == []
    assert (await the_batch(store, batch_id)).cancelled == len(low) + 1


async def test_a_dead_letter_counts_as_failed_until_it_is_retried(store: Store) -> None:
    await register(store)
    batch_id, [job_id] = await submit_batch(store, 1)
    lease = await claim_one(store)
    await end(store, lease._replace(attempts=99), Raised(JobError("ValueError", "bad")))
    assert (await the_job(store, job_id)).state is State.DEAD_LETTER
    batch = await the_batch(store, batch_id)
    assert (batch.failed, batch.live, batch.status) == (1, 0, "failed")
    await store.retry([job_id])
    batch = await the_batch(store, batch_id)
    assert (batch.failed, batch.live, batch.waiting) == (0, 1, 1)


async def test_cancelling_a_batch_cancels_its_child_batches(store: Store) -> None:
    await register(store)
    parent, ids = await submit_batch(store, 1)
    child, inner = await submit_batch(store, 2, parent=parent)
    await store.cancel_batch(parent)
    assert await states(store, *ids, *inner) == [State.CANCELLED] * 3
    assert [(await the_batch(store, one)).status for one in (parent, child)] == ["cancelled", "cancelled"]


async def test_cancelling_a_batch_that_has_ended_changes_nothing(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 1)
    await run(store, *ids)
    before = await the_batch(store, batch_id)
    assert await store.cancel_batch(batch_id) == before


# ---------------------------------------------------------------------- reading


async def test_members_are_read_in_the_order_of_adding_and_in_pages(store: Store) -> None:
    await register(store)
    batch_id, ids = await submit_batch(store, 5, open=True)
    ids += [reply.job_id for reply in (await add(store, batch_id, node(), node())).replies]
    first = await store.members(batch_id, limit=4)
    assert [job.job_id for job in first] == ids[:4]
    rest = await store.members(batch_id, beyond=first[-1].seq, limit=4)
    assert [job.job_id for job in rest] == ids[4:]
    await run(store, ids[1], ending=FAILED)
    assert [job.job_id for job in await store.members(batch_id, states=[State.FAILED])] == [ids[1]]
    assert await store.members(a_batch_id()) == []


async def test_batches_are_found_newest_first_and_by_tenant_and_status(store: Store) -> None:
    await register(store)
    one, ids = await submit_batch(store, 1, tenant="acme")
    two, _ = await submit_batch(store, 1, name="nightly", open=True)
    three, _ = await submit_batch(store, 1, tenant="acme")
    await run(store, *ids)
    found = await store.find_batches(BatchQuery())
    assert [batch.batch_id for batch in found] == [three, two, one]
    assert [batch.name for batch in found] == ["import", "nightly", "import"]
    assert [batch.batch_id for batch in await store.find_batches(BatchQuery(limit=1, before=found[0].seq))] == [two]
    assert [batch.batch_id for batch in await store.find_batches(BatchQuery(tenant="acme"))] == [three, one]
    assert [batch.batch_id for batch in await store.find_batches(BatchQuery(statuses=("completed",)))] == [one]
    assert [batch.batch_id for batch in await store.find_batches(BatchQuery(statuses=("open", "running")))] == [
        three, two,
    ]  # fmt: skip


async def test_a_tenant_cannot_wait_for_the_batch_of_another(store: Store) -> None:
    batch_id, _ = await submit_batch(store, 1, tenant="acme")
    with pytest.raises(BadEdge):
        await submit_node(store, batch_id, job=a_job(tenant="globex"), member=False)


@pytest.mark.parametrize("tenant", ["globex", None])
async def test_a_batch_of_a_tenant_takes_no_other_members(store: Store, tenant: str | None) -> None:
    batch_id, _ = await submit_batch(store, 1, tenant="acme", open=True)
    before, totals = await the_batch(store, batch_id), (await store.stats()).totals
    own, foreign = a_job(tenant="acme"), a_job(tenant=tenant)
    with pytest.raises(BadEdge) as refused:
        await add(store, batch_id, node(job=own), node(job=foreign))
    assert (refused.value.code, refused.value.facts) == ("bad_edge", {"index": 1, "batch_id": batch_id})
    create = a_batch(tenant="acme")
    with pytest.raises(BadEdge):
        await submit_graph(store, node(job=own), node(job=foreign), create=create)
    child = a_batch(parent=batch_id, tenant=tenant)
    with pytest.raises(BadEdge):
        await submit_graph(store, create=child)
    assert await store.get([own.job_id, foreign.job_id]) == [None, None]
    assert await store.get_batches([create.batch_id, child.batch_id]) == [None, None]
    assert (counts(await the_batch(store, batch_id)), (await store.stats()).totals) == (counts(before), totals)
    await add(store, batch_id, node(job=own), node(job=foreign, member=False))
    assert (await the_batch(store, batch_id)).total == 2


async def test_a_batch_without_a_tenant_takes_members_of_any(store: Store) -> None:
    batch_id, _ = await submit_batch(store, 1, open=True)
    await add(store, batch_id, node(job=a_job(tenant="acme")), node(job=a_job(tenant="globex")))
    await submit_batch(store, 1, tenant="acme", parent=batch_id)
    assert (await the_batch(store, batch_id)).total == 4


# ---------------------------------------------------------------------- retention


async def test_members_are_kept_while_the_batch_or_its_dependant_lives(store: Store, clock: ManualClock) -> None:
    await register(store, lease_ms=30 * DAY_MS)
    batch_id, ids = await submit_batch(store, 2)
    then = await submit_node(store, batch_id, job=a_job(delay_ms=10 * DAY_MS), member=False)
    await run(store, ids[0])
    clock.advance(ms=3 * DAY_MS)
    await store.prune(Keep())
    assert await states(store, ids[0]) == [State.COMPLETED]
    await run(store, ids[1])
    clock.advance(ms=3 * DAY_MS)
    await store.prune(Keep())
    assert await states(store, *ids) == [State.COMPLETED] * 2
    clock.advance(ms=5 * DAY_MS)
    assert await run_all(store) == [then]
    clock.advance(ms=3 * DAY_MS)
    for _ in range(3):
        await store.prune(Keep())
    assert await store.get([*ids, then]) == [None] * 3
    assert await store.get_batches([batch_id]) == [None]


async def test_a_batch_is_kept_as_long_as_its_members(store: Store, clock: ManualClock) -> None:
    await register(store, lease_ms=30 * DAY_MS)
    batch_id, ids = await submit_batch(store, 2)
    await run(store, ids[0])
    await run(store, ids[1], ending=FAILED)
    clock.advance(ms=3 * DAY_MS)
    await store.prune(Keep())
    assert await store.get(ids[:1]) == [None]
    batch = await the_batch(store, batch_id)
    assert (batch.total, batch.completed, batch.failed) == (2, 1, 1)
    clock.advance(ms=7 * DAY_MS)
    for _ in range(3):
        await store.prune(Keep())
    assert await store.get_batches([batch_id]) == [None]
    assert await store.find_batches(BatchQuery()) == []
