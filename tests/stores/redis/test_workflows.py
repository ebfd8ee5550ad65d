"""Workflows on Redis: facts that the conformance tests cannot see, such as keys, commands and direct leases."""

from __future__ import annotations

import re
from itertools import product

import pytest

from headway.core.errors import StoreFull
from headway.core.job import NewJob, State
from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.retry import Returned, judge
from headway.core.workflow import (
    BATCH_PREFIX,
    GRAPH_MAX,
    SETTLED_MAX,
    Edge,
    EdgeRule,
    Graph,
    GraphNode,
    SourceStatus,
    Step,
    settle,
)
from headway.stores.redis.library import library
from headway.stores.redis.store import RedisStore
from headway.stores.redis.workflow_codec import RULE_LETTERS, STATUS_LETTERS
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, claim_one, claimed_ids, end, register, report, submit_one, the_job
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
from tests.servers import Proxy, Valkey
from tests.stores.redis.conftest import OpenStore, everything
from tests.stores.redis.test_cost import commands, commands_of_a_drain, rested
from tests.stores.redis.test_direct_lease import a_waiter

DAY = 86_400


def keys(server: Valkey) -> set[str]:
    """Return the names of all keys, without the prefix."""
    found = re.findall(rb"\{headway:default\}:(\S+)\r\n", server.ask("KEYS", "*"))
    return {name.decode() for name in found}


# ---------------------------------------------------------------------- the rule


@pytest.mark.parametrize("rule", EdgeRule)
def test_scripts_settle_an_edge_as_core_does(server: Valkey, rule: EdgeRule) -> None:
    text = library().text
    function = text[text.index("local function verdict_of") :]
    function = function[: function.index("\nend\n") + 5]
    for status, failing in product(SourceStatus, (False, True)):
        call = f"{function} return verdict_of(ARGV[1], ARGV[2], ARGV[3] == '1')"
        letters = (RULE_LETTERS[rule].decode(), STATUS_LETTERS[status].decode(), str(int(failing)))
        verdict = server.ask("EVAL", call, "0", *letters).split(b"\r\n")[1].decode()
        expected = {"S": "satisfy", "X": "cancel", "W": "wait"}[verdict]
        assert expected == settle(rule, status, failing=failing), (rule, status, failing)


def test_scripts_know_the_bounds_and_names_of_core() -> None:
    text = library().text
    assert re.search(rf"SETTLED_MAX = [\d, ]+, {SETTLED_MAX}\n", text)
    assert f"sub(id, 1, {len(BATCH_PREFIX)}) ~= '{BATCH_PREFIX}'" in text


# ---------------------------------------------------------------------- nothing is left


async def test_when_a_workflow_is_pruned_nothing_of_it_is_left(server: Valkey, open_url: OpenStore) -> None:
    clock = ManualClock()
    store = await open_url(server.url, clock=clock)
    await register(store, lease_ms=100 * DAY * 1_000)
    parent, child = a_batch("mark", key="mark", tenant="mark"), a_batch_id()
    members = [node(job=a_job(tenant="mark", payload=b'["mark"]')) for _ in range(4)]
    last = node(members[0].job.job_id, members[1].job.job_id, job=a_job(tenant="mark"))
    callback = node(parent.batch_id, rule=EdgeRule.ON_DONE, job=a_job(tenant="mark"), member=False)
    unhappy = node(parent.batch_id, rule=EdgeRule.ON_FAILURE, job=a_job(tenant="mark"), member=False)
    await submit_graph(store, *members, last, callback, unhappy, create=parent)
    inner = parent._replace(batch_id=child, key=None, parent=parent.batch_id, open=False)
    await submit_graph(store, node(job=a_job(tenant="mark")), create=inner)
    lease, *others = await claim(store)
    assert await store.record_step(Step(lease.job_id, lease.seq, lease.token, "mark", b'"mark"'))
    await end(store, lease)
    for other in others:
        await end(store, other, FAILED)
    await store.close_batch(parent.batch_id)
    await run_all(store)
    batch = await the_batch(store, parent.batch_id)
    assert (batch.status, batch.live, batch.running, batch.held) == ("failed", 0, 0, 0)
    assert b"mark" in everything(server)
    clock.advance(100 * DAY)
    while await store.prune(Keep()):
        pass
    for _ in range(2):  # A batch goes once its members and its child are gone.
        await store.prune(Keep())
    assert b"mark" not in everything(server)
    assert parent.batch_id.encode() not in everything(server)
    assert child.encode() not in everything(server)
    kinds = {name.partition(":")[0] for name in keys(server)}
    assert not kinds & {"up", "down", "b", "bm", "kids", "st", "steps", "batches", "over", "batch_keys", "kept", "held"}


async def test_lists_of_what_is_left_end_empty(server: Valkey, store: RedisStore) -> None:
    await register(store, slots=1_000)
    batch_id, _ = await submit_batch(store, SETTLED_MAX + 20)
    first = await submit_one(store, a_job(lane="high"))
    ids = await submit_graph(store, *(node(first) for _ in range(SETTLED_MAX + 20)))
    await end(store, await claim_one(store))
    assert {"unsettled", "reached"} <= keys(server)
    await store.cancel_batch(batch_id)
    assert "stopping" in keys(server)
    assert sorted(await run_all(store)) == sorted(ids)
    assert not keys(server) & {"unsettled", "reached", "stopping"}
    batch = await the_batch(store, batch_id)
    assert (batch.status, batch.cancelled) == ("cancelled", SETTLED_MAX + 20)


async def test_a_retry_alone_forgets_what_was_left_of_a_source(server: Valkey, store: RedisStore) -> None:
    await register(store)
    first = await submit_one(store)
    ids = await submit_graph(store, *(node(first) for _ in range(SETTLED_MAX + 20)))
    await end(store, await claim_one(store), FAILED)
    assert await store.retry([first], alone=True) == [State.QUEUED]
    assert not keys(server) & {"unsettled", "reached"}
    await end(store, await claim_one(store))
    await run_all(store)
    ended = await states(store, *ids)
    assert (ended.count(State.CANCELLED), ended.count(State.COMPLETED)) == (SETTLED_MAX, 20)


# ---------------------------------------------------------------------- what it costs


async def test_a_plain_job_costs_the_same_beside_workflows(store: RedisStore, server: Valkey) -> None:
    await register(store, slots=100)
    first = await submit_one(store, a_job(needs=("gpu",)))  # No worker takes it.
    before = await commands_of_a_drain(store, server, *(a_job() for _ in range(50)))
    last = await submit_node(store, first)
    await submit_batch(store, 3)
    await run_all(store)
    assert await are_held(store, last)
    assert await commands_of_a_drain(store, server, *(a_job() for _ in range(50))) <= before


async def test_members_cost_a_few_commands_for_each_exchange_and_none_for_each_job(
    store: RedisStore, server: Valkey
) -> None:
    await register(store, slots=100)
    plain = await commands_of_a_drain(store, server, *(a_job() for _ in range(50)))
    batch_id, _ = await submit_batch(store, 0, open=True)
    cost = {}
    for size in (10, 90):
        await add(store, batch_id, *(node() for _ in range(size)))
        before = commands(server)
        leases = await claim(store, free=100)
        await report(store, *(judge(Returned(b"null"), lease, BUILT_IN) for lease in leases))
        cost[size] = commands(server) - before
    assert cost[90] <= cost[10]
    assert cost[90] - plain <= 6
    batch = await the_batch(store, batch_id)
    assert (batch.total, batch.completed, batch.live, batch.running) == (100, 100, 0, 0)


async def test_a_member_takes_no_room_in_its_batch(store: RedisStore, server: Valkey) -> None:
    async def size_of(members: int) -> int:
        batch_id, _ = await submit_batch(store, members)
        names = [f"{{headway:default}}:{kind}:{batch_id}" for kind in ("b", "bm")]
        return sum(int(server.ask("MEMORY", "USAGE", name)[1:]) for name in names)

    assert await size_of(5_000) - await size_of(5) < 32


async def test_a_store_with_held_jobs_is_quiet(store: RedisStore, server: Valkey) -> None:
    feed = await rested(store)
    first = await submit_one(store, a_job(needs=("gpu",)))
    await submit_node(store, first)
    while (await feed.exchange([], [], free=5, free_below=4)).more:
        pass
    assert not await store.quiet(2)  # The source waits for a worker with a graphics card.
    await store.cancel([first])
    assert await store.quiet(2)


# ---------------------------------------------------------------------- direct leases


async def test_a_member_that_comes_alone_is_leased_directly(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    batch_id, [job_id] = await submit_batch(store, 1)
    last = await submit_node(store, batch_id)
    assert await waiter.subscription.wait(5) is not None
    fed = await waiter.feed.exchange([], [], free=5, free_below=4, woken=True)
    [lease] = fed.leases
    assert (lease.job_id, lease.batch_id) == (job_id, batch_id)
    assert [lease] == await store.leases(worker_id="w1")
    batch = await the_batch(store, batch_id)
    assert (batch.live, batch.running) == (1, 1)
    await end(store, lease)
    batch = await the_batch(store, batch_id)
    assert (batch.status, batch.running, batch.completed) == ("completed", 0, 1)
    assert await claimed_ids(store) == [last]


async def test_a_source_that_was_leased_directly_releases_its_dependants(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    first = await submit_one(store)
    last = await submit_node(store, first)
    assert await waiter.subscription.wait(5) is not None
    [lease] = (await waiter.feed.exchange([], [], free=5, free_below=4, woken=True)).leases
    assert lease.job_id == first
    assert await are_held(store, last)
    await end(store, lease)
    assert await claimed_ids(store) == [last]


async def test_a_job_that_expires_when_it_is_leased_directly_ends_its_batch(store: RedisStore) -> None:
    await a_waiter(store)
    reply = await store.submit_graph(Graph((node(job=a_job(expires_ms=0)),), a_batch(open=False)))
    assert reply.batch_id is not None
    batch = await the_batch(store, reply.batch_id)
    assert (batch.status, batch.cancelled, batch.running) == ("failed", 1, 0)


async def test_a_deferred_job_can_be_a_source(store: RedisStore, server: Valkey) -> None:
    await register(store)
    known, first = a_job(), a_job()
    for job in (known, first):  # The first one is a call, and learns that no worker waits.
        assert store.submit_blocking([job]) is not None
    assert "in" in keys(server)
    last = await submit_node(store, first.job_id)
    assert await are_held(store, last)
    assert await run_all(store) == [known.job_id, first.job_id, last]


# ---------------------------------------------------------------------- limits, archive, a full server, lost replies


@pytest.mark.slow
async def test_the_largest_graph_is_stored_in_one_step(store: RedisStore) -> None:
    jobs: list[NewJob] = [a_job() for _ in range(GRAPH_MAX)]
    nodes = [GraphNode(job, (Edge(jobs[at - 1].job_id),) if at % 10 else ()) for at, job in enumerate(jobs)]
    create = a_batch(open=False)
    reply = await store.submit_graph(Graph(nodes, create))
    assert [one.job_id for one in reply.replies] == [job.job_id for job in jobs]
    batch = await the_batch(store, create.batch_id)
    assert (batch.total, batch.held, batch.live) == (GRAPH_MAX, GRAPH_MAX - GRAPH_MAX // 10, GRAPH_MAX)
    page = await store.members(create.batch_id, beyond=batch.seq + batch.total - 3)
    assert [job.job_id for job in page] == [job.job_id for job in jobs[-3:]]


async def test_a_job_that_was_archived_stays_while_a_live_job_needs_it(server: Valkey, open_url: OpenStore) -> None:
    clock = ManualClock()
    store = await open_url(server.url, clock=clock)
    await register(store, lease_ms=100 * DAY * 1_000)
    assert await store.unarchived(10) == []
    one, two = await submit_one(store), await submit_one(store)
    last = await submit_node(store, one, two)
    await run(store, one, ending=Returned(b"1"))
    [kept] = await store.unarchived(10)
    await store.archived([kept])
    clock.advance(3 * DAY)
    assert await store.prune(Keep()) == 0
    [[upstream, _]] = await store.upstreams([last], results=True)
    assert (upstream.source, upstream.result) == (one, b"1")
    await run_all(store)
    await store.archived(await store.unarchived(10))
    clock.advance(3 * DAY)
    await store.prune(Keep())
    assert await store.get([one, two, last]) == [None, None, None]


async def test_jobs_that_are_needed_hold_up_no_others(server: Valkey, open_url: OpenStore) -> None:
    clock = ManualClock()
    store = await open_url(server.url, clock=clock)
    await register(store, slots=100, lease_ms=100 * DAY * 1_000)
    batch_id, members = await submit_batch(store, 20, open=True)
    await run_all(store, failing=frozenset(members[:10]))
    plain = [await submit_one(store) for _ in range(10)]
    await run_all(store, failing=frozenset(plain[:5]))
    clock.advance(100 * DAY)
    assert await store.prune(Keep(), limit=5) == 5
    assert await store.prune(Keep(), limit=5) == 5
    assert await store.prune(Keep(), limit=5) == 0
    assert await store.get(plain) == [None] * 10
    assert len(await store.members(batch_id)) == 20
    await store.close_batch(batch_id)
    assert await store.prune(Keep()) == 20
    await store.prune(Keep())
    assert await store.get_batches([batch_id]) == [None]


async def test_a_full_server_refuses_graphs_whole_and_releases_jobs(store: RedisStore, server: Valkey) -> None:
    await register(store)
    first = await submit_one(store)
    last = await submit_node(store, first)
    before = server.ask("DBSIZE"), (await store.stats()).totals
    server.ask("CONFIG", "SET", "maxmemory", "1000000")
    with pytest.raises(StoreFull, match="maxmemory"):
        await submit_batch(store, 3)
    lease = await claim_one(store)
    with pytest.raises(StoreFull, match="maxmemory"):
        await store.record_step(Step(lease.job_id, lease.seq, lease.token, "fetch", b"1"))
    await end(store, lease)
    assert (await the_job(store, last)).held is False
    server.ask("CONFIG", "SET", "maxmemory", "0")
    assert await claimed_ids(store) == [last]
    assert (await store.stats()).totals["submitted"] == before[1]["submitted"]


async def test_a_graph_whose_reply_is_lost_is_stored_once(behind: RedisStore, proxy: Proxy) -> None:
    await register(behind)
    create = a_batch(open=False)
    first = node()
    proxy.lose_replies()
    reply = await behind.submit_graph(Graph((first, node(first.job.job_id)), create))
    assert proxy.lost == 1
    assert (reply.batch_id, reply.created) == (create.batch_id, True)
    assert (await the_batch(behind, create.batch_id)).total == 2
    assert await run_all(behind) == [one.job_id for one in reply.replies]
    assert (await the_batch(behind, create.batch_id)).status == "completed"
