"""Graphs: jobs that wait for other jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.errors import BadEdge, CycleError, IdempotencyConflict
from headway.core.job import State
from headway.core.policy.document import BUILT_IN, Keep, Ladder, LimitRule, Policy, Rung
from headway.core.policy.enforced import pausing, resuming
from headway.core.policy.retry import Raised, Returned, judge
from headway.core.workflow import EDGES_MAX, GRAPH_MAX, SETTLED_MAX, Edge, EdgeRule, Graph, GraphNode, SourceStatus
from headway.policy_store.rule_documents import change_paused, write_rules
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    an_id,
    ask,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    report,
    submit,
    submit_one,
    the_job,
)
from tests.conformance.workflows import (
    FAILED,
    are_held,
    give_back,
    node,
    run,
    run_all,
    states,
    submit_graph,
    submit_node,
)

DAY_MS = 86_400_000


async def test_a_job_starts_when_the_job_it_waits_for_has_completed(store: Store, clock: ManualClock) -> None:
    await register(store)
    first = node()
    one, two = await submit_graph(store, first, node(first.job.job_id))
    assert await are_held(store, two)
    assert (await the_job(store, two)).eligible_at is None
    lease = await claim_one(store)
    assert lease.job_id == one
    clock.advance(ms=7)
    await end(store, lease)
    released = await the_job(store, two)
    assert (released.state, released.held, released.eligible_at) == (State.QUEUED, False, clock())
    assert await claimed_ids(store) == [two]


async def test_totals_count_a_dependants_release_apart_from_jobs_that_workers_give_back(store: Store) -> None:
    await register(store)
    first = node()
    _, two = await submit_graph(store, first, node(first.job.job_id))
    await run(store, first.job.job_id)
    totals = (await store.stats()).totals
    assert (totals.get("held"), totals.get("unheld"), totals.get("released", 0)) == (1, 1, 0)
    await give_back(store, *await claim(store, free=1))
    totals = (await store.stats()).totals
    assert (totals.get("unheld"), totals.get("released")) == (1, 1)
    assert await states(store, two) == [State.QUEUED]


async def test_a_report_and_the_claim_of_its_dependant_are_one_exchange(store: Store) -> None:
    await register(store)
    chain = [node()]
    for _ in range(4):
        chain.append(node(chain[-1].job.job_id))
    ids = await submit_graph(store, *chain)
    assert await run_all(store) == ids
    assert await states(store, *ids) == [State.COMPLETED] * 5


async def test_a_job_waits_for_all_its_sources(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    await run(store, one)
    assert await are_held(store, last)
    await run(store, two)
    assert not await are_held(store, last)
    assert await claimed_ids(store) == [last]


async def test_a_diamond_runs_each_job_once_and_in_order(store: Store) -> None:
    await register(store)
    top = node()
    left, right = node(top.job.job_id), node(top.job.job_id)
    bottom = node(left.job.job_id, right.job.job_id)
    ids = await submit_graph(store, bottom, left, right, top)
    order = await run_all(store)
    assert sorted(order) == sorted(ids)
    assert order[0] == top.job.job_id
    assert order[-1] == bottom.job.job_id


async def test_a_job_that_is_no_longer_held_is_not_counted_as_given_back(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    await submit_node(store, one)
    await end(store, await claim_one(store))
    totals = (await store.stats()).totals
    assert (totals.get("held"), totals.get("unheld"), totals.get("released")) == (1, 1, None)


async def test_held_jobs_are_counted_apart_and_announce_no_moment(store: Store) -> None:
    one = await submit_one(store)
    await submit_node(store, one)
    lane = (await store.stats()).lanes["medium"]
    assert (lane.waiting, lane.delayed, lane.held) == (1, 0, 1)
    assert (await store.snapshot()).next_due_at is None


async def test_why_names_what_a_held_job_waits_for(store: Store) -> None:
    one = await submit_one(store)
    last = await submit_node(store, one, rule=EdgeRule.HOLD)
    diagnosis = await store.diagnose_job(last)
    assert diagnosis is not None
    [upstream] = diagnosis.upstreams
    assert (upstream.source, upstream.rule, upstream.satisfied) == (one, EdgeRule.HOLD, False)
    assert (upstream.status, upstream.state) == (SourceStatus.LIVE, State.QUEUED)


async def test_results_reach_the_dependant_in_the_order_of_its_edges(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, two, one)
    await run(store, one, ending=Returned(b"1"))
    await run(store, two, ending=Returned(b"2"))
    [upstreams, none] = await store.upstreams([last, an_id()], results=True)
    assert [(up.source, up.result, up.state, up.satisfied) for up in upstreams] == [
        (two, b"2", State.COMPLETED, True), (one, b"1", State.COMPLETED, True),
    ]  # fmt: skip
    assert none == []


# ---------------------------------------------------------------------- failures


async def test_a_failure_cancels_the_dependants_down_the_graph_and_nothing_else(store: Store) -> None:
    await register(store)
    top, other = node(), node()
    middle = node(top.job.job_id)
    bottom, free = node(middle.job.job_id, other.job.job_id), node(other.job.job_id)
    await submit_graph(store, top, other, middle, bottom, free)
    ids = [one.job.job_id for one in (top, other, middle, bottom, free)]
    await run(store, top.job.job_id, ending=FAILED)
    assert await states(store, *ids) == [
        State.FAILED, State.QUEUED, State.CANCELLED, State.CANCELLED, State.QUEUED,
    ]  # fmt: skip
    assert (await the_job(store, middle.job.job_id)).reason == f"upstream {top.job.job_id}"
    assert (await the_job(store, bottom.job.job_id)).reason == f"upstream {middle.job.job_id}"
    assert await run_all(store) == [other.job.job_id, free.job.job_id]


@pytest.mark.parametrize("how", ["cancel", "expire", "dead"])
async def test_other_bad_endings_cancel_dependants_too(store: Store, clock: ManualClock, how: str) -> None:
    await register(store)
    one = await submit_one(store, a_job(expires_ms=1_000 if how == "expire" else None, max_retries=0))
    last = await submit_node(store, one)
    if how == "cancel":
        await store.cancel([one])
    elif how == "expire":
        clock.advance(ms=1_001)
        await store.prune(Keep())
    else:
        await run(store, one, ending=Raised(BOOM))
    assert await states(store, last) == [State.CANCELLED]
    assert (await the_job(store, last)).reason == f"upstream {one}"


async def test_a_job_that_expires_at_a_claim_cancels_its_dependants(store: Store, clock: ManualClock) -> None:
    await register(store)
    one = await submit_one(store, a_job(expires_ms=1_000))
    last = await submit_node(store, one)
    clock.advance(ms=1_001)
    assert await claim(store) == []
    assert await states(store, one, last) == [State.CANCELLED, State.CANCELLED]


async def test_a_dependant_may_run_after_a_failure(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one, rule=EdgeRule.RUN)
    await run(store, one, ending=FAILED)
    assert await claimed_ids(store) == [last]


async def test_a_dependant_may_be_held_until_its_source_is_retried(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one, rule=EdgeRule.HOLD)
    await run(store, one, ending=FAILED)
    assert await are_held(store, last)
    await store.retry([one])
    assert await are_held(store, last)
    assert await run_all(store) == [one, last]


async def test_a_retry_that_will_follow_is_no_ending(store: Store, clock: ManualClock) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one)
    await run(store, one, ending=Raised(BOOM))
    assert await are_held(store, last)
    clock.advance(ms=120_000)
    await register(store)
    assert await run_all(store) == [one, last]


async def test_cancelling_a_held_job_cancels_what_waits_for_it(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    middle = await submit_node(store, one)
    last = await submit_node(store, middle)
    assert await store.cancel([middle]) == [State.CANCELLED]
    assert (await the_job(store, middle)).reason == "cancelled"
    assert await states(store, one, middle, last) == [State.QUEUED, State.CANCELLED, State.CANCELLED]
    assert await run_all(store) == [one]
    assert await states(store, middle) == [State.CANCELLED]


async def test_a_held_job_may_expire(store: Store, clock: ManualClock) -> None:
    one = await submit_one(store)
    last = await submit_node(store, one, job=a_job(expires_ms=500))
    clock.advance(ms=501)
    await store.prune(Keep())
    job = await the_job(store, last)
    assert (job.state, job.reason, job.held) == (State.CANCELLED, "expired", False)


# ---------------------------------------------------------------------- retries


async def test_retrying_a_source_restores_exactly_what_it_had_cancelled(store: Store) -> None:
    await register(store)
    one, other = await submit_one(store), await submit_one(store)
    middle = await submit_node(store, one)
    last = await submit_node(store, middle)
    by_hand = await submit_node(store, one)
    elsewhere = await submit_node(store, other)
    await store.cancel([by_hand, elsewhere])
    await run(store, one, ending=FAILED)
    assert await states(store, middle, last) == [State.CANCELLED, State.CANCELLED]
    assert await store.retry([one]) == [State.QUEUED]
    assert await are_held(store, middle, last)
    assert await states(store, by_hand, elsewhere) == [State.CANCELLED, State.CANCELLED]
    assert (await the_job(store, middle)).reason is None
    assert await run_all(store) == [other, one, middle, last]


async def test_a_retry_alone_restores_nothing(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one)
    await run(store, one, ending=FAILED)
    assert await store.retry([one], alone=True) == [State.QUEUED]
    assert await states(store, last) == [State.CANCELLED]
    assert await run_all(store) == [one]
    assert await states(store, last) == [State.CANCELLED]


async def test_a_dependant_of_two_failures_stays_cancelled_until_both_are_retried(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    await run(store, one, ending=FAILED)
    await run(store, two, ending=FAILED)
    await store.retry([one])
    job = await the_job(store, last)
    assert (job.state, job.reason) == (State.CANCELLED, f"upstream {two}")
    await store.retry([two])
    assert await are_held(store, last)
    order = await run_all(store)
    assert (sorted(order[:2]), order[2]) == (sorted([one, two]), last)


async def test_a_held_job_waits_again_for_a_source_that_is_live_again(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two, rule=EdgeRule.RUN)
    await run(store, one, ending=FAILED)
    [[first, _]] = await store.upstreams([last])
    assert first.satisfied
    await store.retry([one])
    [[first, _]] = await store.upstreams([last])
    assert (first.satisfied, first.status) == (False, SourceStatus.LIVE)
    await run(store, two)
    assert await are_held(store, last)
    assert await run_all(store) == [one, last]


async def test_a_retry_of_one_of_two_failures_changes_only_the_reason(store: Store, clock: ManualClock) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    await run(store, one, ending=FAILED)
    await run(store, two, ending=FAILED)
    before, totals = await the_job(store, last), (await store.stats()).totals
    clock.advance(ms=5)
    await store.retry([one])
    after = await the_job(store, last)
    assert after == replace(before, reason=f"upstream {two}", seen_at=clock())
    assert (await store.stats()).totals == totals


async def test_a_dependant_that_is_retried_by_hand_runs_at_once(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one)
    await run(store, one, ending=FAILED)
    assert await store.retry([last]) == [State.QUEUED]
    assert await run_all(store) == [last]
    assert await states(store, one, last) == [State.FAILED, State.COMPLETED]


async def test_a_retried_dependant_waits_for_a_source_that_is_live(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one)
    await store.cancel([last])
    assert await store.retry([last]) == [State.QUEUED]
    assert await are_held(store, last)
    assert await run_all(store) == [one, last]


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("alone", [True, False])
async def test_jobs_that_are_retried_together_wait_for_each_other_again(
    store: Store, ascending: bool, alone: bool
) -> None:
    await register(store)
    first = node()
    middle = node(first.job.job_id)
    ids = await submit_graph(store, first, middle, node(middle.job.job_id))
    await store.cancel(ids[::-1])
    picked = ids if ascending else ids[::-1]
    assert await store.retry(picked, alone=alone) == [State.QUEUED] * 3
    assert await are_held(store, *ids[1:])
    assert not await are_held(store, ids[0])
    assert await run_all(store) == ids


async def test_a_retried_dependant_that_ran_waits_again_for_a_source_that_is_retried_too(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one, rule=EdgeRule.RUN)
    await run(store, one, ending=FAILED)
    await run(store, last, ending=FAILED)
    assert await store.retry([one, last], alone=True) == [State.QUEUED] * 2
    assert await are_held(store, last)
    assert await run_all(store) == [one, last]


async def test_a_dependant_that_is_retried_alone_and_held_restores_nothing(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    middle = await submit_node(store, one)
    last = await submit_node(store, middle)
    await store.cancel([middle])
    assert await states(store, last) == [State.CANCELLED]
    await store.retry([middle], alone=True)
    assert await are_held(store, middle)
    assert await states(store, last) == [State.CANCELLED]
    assert await run_all(store) == [one, middle]


async def test_a_retried_dependant_of_a_failed_and_a_live_source_runs_at_once(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    await run(store, one, ending=FAILED)
    assert await store.retry([last]) == [State.QUEUED]
    assert not await are_held(store, last)


async def test_a_report_that_comes_twice_releases_once(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    leases = {lease.job_id: lease for lease in await claim(store, free=2)}
    once = judge(Returned(b"1"), leases[one], BUILT_IN)
    await report(store, once)
    await report(store, once)
    await report(store, once)
    assert await are_held(store, last)
    await end(store, leases[two])
    assert await claimed_ids(store) == [last]


# ---------------------------------------------------------------------- sources that exist


@pytest.mark.parametrize(
    "rule, expected",
    [(EdgeRule.CANCEL, State.CANCELLED), (EdgeRule.RUN, State.QUEUED), (EdgeRule.HOLD, State.QUEUED)],
)
async def test_an_edge_to_a_failed_job_is_settled_at_once(store: Store, rule: EdgeRule, expected: State) -> None:
    await register(store)
    one = await submit_one(store)
    await run(store, one, ending=FAILED)
    last = await submit_node(store, one, rule=rule)
    job = await the_job(store, last)
    assert (job.state, job.held) == (expected, rule is EdgeRule.HOLD)


async def test_an_edge_to_a_completed_job_does_not_hold(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    await run(store, one)
    last = await submit_node(store, one)
    assert await claimed_ids(store) == [last]


async def test_an_edge_to_a_running_job_holds(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    lease = await claim_one(store)
    last = await submit_node(store, one)
    assert await are_held(store, last)
    await end(store, lease)
    assert await claimed_ids(store) == [last]


async def test_a_source_that_was_deduplicated_stands_for_the_job_that_exists(store: Store) -> None:
    await register(store)
    known = await submit_one(store, a_job(unique_key="only"))
    again = node(job=a_job(unique_key="only"))
    one, last = await submit_graph(store, again, node(again.job.job_id))
    assert one == known
    [[upstream]] = await store.upstreams([last])
    assert upstream.source == known
    assert await run_all(store) == [known, last]


async def test_two_sources_that_stand_for_one_job_are_one_source(store: Store) -> None:
    await register(store)
    known = await submit_one(store, a_job(unique_key="only"))
    one, two = node(job=a_job(unique_key="only")), node(job=a_job(unique_key="only"))
    *_, last = await submit_graph(store, one, two, node(one.job.job_id, two.job.job_id))
    [upstreams] = await store.upstreams([last])
    assert [upstream.source for upstream in upstreams] == [known]
    assert await run_all(store) == [known, last]


async def test_a_job_of_a_graph_may_stand_for_another_one_of_it(store: Store) -> None:
    await register(store)
    one, two = node(job=a_job(unique_key="only")), node(job=a_job(unique_key="only"))
    first, second, last = await submit_graph(store, one, two, node(two.job.job_id))
    assert first == second == one.job.job_id
    assert await run_all(store) == [first, last]


async def test_a_key_may_stand_for_a_job_that_was_pruned(store: Store, clock: ManualClock) -> None:
    await register(store, lease_ms=10 * DAY_MS)
    known = await submit_one(store, a_job(idempotency_key="once", idempotency_ms=10 * DAY_MS))
    await run(store, known)
    clock.advance(ms=3 * DAY_MS)
    await store.prune(Keep())
    again = node(job=a_job(idempotency_key="once"))
    one, last = await submit_graph(store, again, node(again.job.job_id))
    assert one == known
    job = await the_job(store, last)
    assert (job.state, job.reason) == (State.CANCELLED, f"upstream {known}")


async def test_a_graph_that_is_submitted_twice_is_stored_once(store: Store) -> None:
    await register(store)
    first = node()
    graph = Graph((first, node(first.job.job_id)))
    reply = await store.submit_graph(graph)
    assert await store.submit_graph(graph) == reply
    order = await run_all(store)
    assert order == [one.job_id for one in reply.replies]
    assert await store.submit_graph(graph) == reply
    assert await run_all(store) == []


# ---------------------------------------------------------------------- wrong graphs


async def test_a_wrong_graph_leaves_nothing_behind(store: Store) -> None:
    before = await store.stats()
    first, second = a_job(), a_job()
    cycle = Graph((
        GraphNode(first, (Edge(second.job_id),)), GraphNode(second, (Edge(first.job_id),)), GraphNode(a_job()),
    ))  # fmt: skip
    with pytest.raises(CycleError) as cycled:
        await store.submit_graph(cycle)
    assert cycled.value.code == "cycle"
    with pytest.raises(CycleError):
        await store.submit_graph(Graph((GraphNode(first, (Edge(first.job_id),)),)))
    with pytest.raises(BadEdge) as unknown:
        await store.submit_graph(Graph((node(), node(an_id()))))
    assert unknown.value.facts["index"] == 1
    sources = [node() for _ in range(EDGES_MAX + 1)]
    with pytest.raises(BadEdge, match="waits for 1,001 others, at most 1,000 are allowed"):
        await store.submit_graph(Graph((*sources, node(*(one.job.job_id for one in sources)))))
    with pytest.raises(BadEdge, match="at most 100,000 jobs, got 100,001"):
        await store.submit_graph(Graph([node()] * (GRAPH_MAX + 1)))
    with pytest.raises(BadEdge):
        await store.submit_graph(Graph((node(job=a_job(persist=False)),)))
    assert (await store.stats()).totals == before.totals
    assert await store.get([first.job_id, second.job_id]) == [None, None]


async def test_jobs_that_stand_for_each_other_cannot_wait_for_each_other(store: Store) -> None:
    last = node(job=a_job(unique_key="only"))
    middle = node(last.job.job_id)
    first = node(middle.job.job_id, job=a_job(unique_key="only"))  # The store would keep this one for both.
    with pytest.raises(CycleError):
        await submit_graph(store, first, middle, last)
    assert await store.get([first.job.job_id, middle.job.job_id]) == [None, None]


async def test_a_tenant_cannot_wait_for_the_job_of_another(store: Store) -> None:
    one = await submit_one(store, a_job(tenant="acme"))
    with pytest.raises(BadEdge):
        await submit_node(store, one, job=a_job(tenant="globex"))
    assert await are_held(store, await submit_node(store, one, job=a_job(tenant="acme")))
    assert await are_held(store, await submit_node(store, one, job=a_job()))


async def test_a_conflict_in_a_graph_leaves_nothing_behind(store: Store) -> None:
    known = await submit_one(store)
    first = node()
    wrong = node(first.job.job_id, job=a_job(known, task="other"))
    with pytest.raises(IdempotencyConflict):
        await submit_graph(store, first, wrong)
    assert await store.get([first.job.job_id]) == [None]


# ---------------------------------------------------------------------- places


async def test_a_released_job_goes_before_jobs_that_were_submitted_after_it(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    held = await submit_node(store, one)
    later = await submit_one(store)
    assert await run_all(store) == [one, later, held]  # Five slots: both wait for nothing.
    one = await submit_one(store)
    held = await submit_node(store, one)
    await submit(store, *(a_job() for _ in range(7)))
    lease = await claim_one(store)
    await end(store, lease)
    assert (await claimed_ids(store, free=1)) == [held]


async def test_a_graph_may_release_to_the_back(store: Store) -> None:
    await register(store)
    one = await submit_one(store)
    [reply] = (await store.submit_graph(Graph((node(one),), back=True))).replies
    later = await submit_one(store)
    await end(store, await claim_one(store))
    assert await claimed_ids(store, free=2) == [later, reply.job_id]


async def test_a_released_job_obeys_its_own_delay(store: Store, clock: ManualClock) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one, job=a_job(delay_ms=5_000))
    await run(store, one)
    job = await the_job(store, last)
    assert (job.held, job.due_at) == (False, clock() + 5_000)
    clock.advance(ms=5_001)
    assert await claimed_ids(store) == [last]


async def test_a_delay_that_passed_while_a_job_was_held_has_passed(store: Store, clock: ManualClock) -> None:
    await register(store)
    one = await submit_one(store)
    last = await submit_node(store, one, job=a_job(delay_ms=5_000))
    clock.advance(ms=6_000)
    await run(store, one)
    assert await claimed_ids(store) == [last]


async def test_a_released_job_of_a_tenant_waits_for_its_turn(store: Store) -> None:
    await register(store)
    one = await submit_one(store, a_job(tenant="a"))
    held = [await submit_node(store, one, job=a_job(tenant="a")) for _ in range(3)]
    other = await submit_one(store, a_job(tenant="b"))
    await run(store, one)
    order = await run_all(store)
    assert set(order) == {*held, other}
    assert order.index(other) <= 1


# ---------------------------------------------------------------------- size


async def test_a_released_job_obeys_lane_limit_rung_and_pause(store: Store) -> None:
    rungs = Ladder((Rung("fast", 3_000, limit=1), Rung("slow", 30_000)))
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}, ladder=rungs))
    await register(store, slots=50)
    source = await submit_one(store)
    limited = [await submit_node(store, source, job=a_job(limits=("account=7",))) for _ in range(2)]
    climbing = [await submit_node(store, source, job=a_job(rung="fast")) for _ in range(2)]
    paused = await submit_node(store, source, job=a_job(task="paused"))
    high = await submit_node(store, source, job=a_job(lane="high"))
    await change_paused(store, pausing(None, "paused", None))
    await run(store, source)
    [lease] = await claim(store, free=1)
    assert lease.job_id == high
    started = [lease.job_id for lease in await claim(store, free=20)]
    assert sorted(started) == sorted([limited[0], climbing[0]])
    await change_paused(store, resuming(None, "paused", None))
    assert [lease.job_id for lease in await claim(store, free=20)] == [paused]


async def test_a_large_fan_out_is_released_in_pieces_and_completely(store: Store) -> None:
    await register(store, slots=1_000)
    one = await submit_one(store)
    size = SETTLED_MAX * 2 + 10
    ids = await submit_graph(store, *(node(one) for _ in range(size)))
    await end(store, await claim_one(store))
    free = sum([not await are_held(store, job_id) for job_id in ids])
    assert free == SETTLED_MAX
    assert sorted(await run_all(store)) == sorted(ids)
    assert (await store.stats()).lanes["medium"].held == 0


async def test_a_large_fan_out_is_cancelled_and_restored_completely(store: Store) -> None:
    await register(store, slots=1_000)
    one = await submit_one(store)
    size = SETTLED_MAX * 2 + 10
    ids = await submit_graph(store, *(node(one) for _ in range(size)))
    await end(store, await claim_one(store), FAILED)
    for _ in range(3):
        await store.prune(Keep())
    assert await states(store, *ids) == [State.CANCELLED] * size
    await store.retry([one])
    for _ in range(3):
        await store.prune(Keep())
    assert await are_held(store, *ids)
    assert sorted(await run_all(store)) == sorted([one, *ids])


async def test_a_retry_in_the_middle_of_a_large_cancellation_loses_nothing(store: Store) -> None:
    await register(store, slots=1_000)
    one = await submit_one(store)
    ids = await submit_graph(store, *(node(one) for _ in range(SETTLED_MAX + 50)))
    await end(store, await claim_one(store), FAILED)
    await store.retry([one])
    assert sorted(await run_all(store)) == sorted([one, *ids])
    assert await states(store, *ids) == [State.COMPLETED] * len(ids)


async def test_a_waiting_worker_is_woken_for_what_a_verb_has_left(store: Store) -> None:
    await register(store, slots=1_000)
    one = await submit_one(store, a_job(delay_ms=60_000))
    await submit_graph(store, *(node(one) for _ in range(SETTLED_MAX + 50)))
    subscription = store.subscribe("w1")
    try:
        assert (await ask(store, wait=True)).leases == []
        await store.cancel([one])
        assert await subscription.wait(10) is not None
        answer = await ask(store)
        assert not answer.more
    finally:
        subscription.close()
    assert (await store.stats()).lanes["medium"].held == 0


# ---------------------------------------------------------------------- retention


async def test_a_result_is_kept_while_a_live_dependant_needs_it(store: Store, clock: ManualClock) -> None:
    await register(store, lease_ms=10 * DAY_MS)
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    await run(store, one)
    clock.advance(ms=3 * DAY_MS)
    await store.prune(Keep())
    assert await states(store, one) == [State.COMPLETED]
    await run(store, two)
    await run(store, last)
    clock.advance(ms=3 * DAY_MS)
    await store.prune(Keep())
    await store.prune(Keep())
    assert await store.get([one, two, last]) == [None, None, None]


async def test_purging_spares_what_a_live_dependant_needs(store: Store) -> None:
    await register(store)
    one, two = await submit_one(store), await submit_one(store)
    await submit_node(store, one, two)
    await run(store, one)
    assert await store.purge([State.COMPLETED], [one]) == 0
    assert await states(store, one) == [State.COMPLETED]
