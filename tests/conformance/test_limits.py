"""Limits: never exceeded, and a job that waits for its own limit delays no other job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import pytest

from headway.core.job import ClassKey, JobId, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, Keep, LimitRule, Policy
from headway.core.policy.enforced import PAUSE
from headway.core.policy.retry import Crashed, Raised, Released, Returned, Snoozed, Stopped, judge
from headway.policy_store.rule_documents import declare_limits, write_rules
from headway.stores.base import SKIPPED_MAX, JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    LEASE_MS,
    a_job,
    ask,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    reap,
    register,
    report,
    state_of,
    submit,
    submit_one,
    the_job,
)
from tests.conformance.conftest import Listen
from tests.conftest import OpenStore

SOON = 5  # Seconds; a wake-up takes milliseconds.
SILENCE = 0.03  # Seconds in which nothing may come.
SEVEN = ("account=7",)
TEN_SECONDS = 10_000
SIX_A_MINUTE = LimitRule(count=6, period_ms=60_000)


def per_account(concurrency: int) -> LimitRule:
    return LimitRule(concurrency=concurrency, by="account")


async def enforce(store: Store, limits: Mapping[str, LimitRule] | None = None) -> None:
    """Apply exactly these limits."""
    await write_rules(store, Policy(limits=limits or {}))


async def blocked_by(store: Store, job_id: JobId) -> str | None:
    return (await the_job(store, job_id)).blocked_by


async def waiting(store: Store, key: ClassKey = ClassKey("medium")) -> int:  # noqa: B008  (it is frozen)
    return next(view.waiting for view in (await store.snapshot()).classes if view.key == key)


# ---------------------------------------------------------------------- what is counted


async def test_a_limit_is_counted_for_each_value_by_itself(store: Store) -> None:
    await enforce(store, {"account": per_account(2)})
    sevens = await submit(store, *(a_job(limits=SEVEN) for _ in range(4)))
    [eight] = await submit(store, a_job(limits=("account=8",)))
    await register(store)
    assert await claimed_ids(store) == [*sevens[:2], eight]
    assert await claimed_ids(store) == []


async def test_a_job_that_a_limit_holds_back_delays_nobody_behind_it(store: Store) -> None:
    # R4.46, R4.1
    await enforce(store, {"account": per_account(1)})
    sevens = await submit(store, *(a_job(limits=SEVEN) for _ in range(50)))
    others = await submit(store, *(a_job() for _ in range(4)))
    await register(store)
    assert await claimed_ids(store) == [sevens[0], *others]
    assert await state_of(store, sevens[1]) is State.QUEUED


async def test_a_key_that_no_rule_is_about_binds_nobody(store: Store) -> None:
    await enforce(store, {"host": LimitRule(concurrency=1, by="host")})
    job_ids = await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    await register(store)
    assert await claimed_ids(store) == job_ids


@pytest.mark.parametrize(
    "tasks, started",
    [
        pytest.param((), ["export", "render"], id="every task"),
        pytest.param(("reports.*",), ["export", "render", "send", "send"], id="a pattern"),
        pytest.param(("reports.export", "mail.send"), ["export", "render", "render", "send"], id="two names"),
        pytest.param(("*.render",), ["export", "render", "render", "send", "send"], id="no more than the limit"),
        pytest.param(("other.*",), ["export", "render", "render", "send", "send"], id="none of these"),
    ],
)
async def test_a_limit_without_a_parameter_counts_the_jobs_of_its_tasks_together(
    store: Store, tasks: tuple[str, ...], started: list[str]
) -> None:
    await enforce(store, {"all": LimitRule(concurrency=2, tasks=tasks)})
    names = ("reports.export", "reports.render", "reports.render", "mail.send", "mail.send")
    await submit(store, *(a_job(task=name) for name in names))
    await register(store, slots=10)
    assert [lease.task.partition(".")[2] for lease in await claim(store, free=10)] == started


async def test_a_limit_by_tenant_needs_no_parameter_and_counts_jobs_without_one_as_one(store: Store) -> None:
    await enforce(store, {"each": LimitRule(concurrency=1, by="tenant")})
    tenants = ("acme", "acme", "zeta", None, None)
    jobs = await submit(store, *(a_job(tenant=tenant) for tenant in tenants))
    await register(store, slots=10)
    leases = await claim(store, free=10)
    assert Counter(lease.tenant for lease in leases) == {"acme": 1, "zeta": 1, None: 1}
    assert {job_id: await blocked_by(store, job_id) for job_id in (jobs[1], jobs[4])} == {
        jobs[1]: "each=acme",
        jobs[4]: "each=",
    }


async def test_a_limit_holds_for_what_was_queued_before_it_came(store: Store) -> None:
    job_ids = await submit(store, *(a_job() for _ in range(3)))
    await register(store)
    await enforce(store, {"all": LimitRule(concurrency=1)})
    assert await claimed_ids(store) == job_ids[:1]


async def test_a_limit_counts_what_ran_before_it_came(store: Store) -> None:
    first, second, third = await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    await register(store)
    assert await claimed_ids(store, free=1) == [first]
    await enforce(store, {"account": per_account(2)})
    assert await claimed_ids(store) == [second]
    assert await blocked_by(store, third) == "account=7"


async def test_a_job_with_two_limits_needs_room_in_both(store: Store) -> None:
    await enforce(store, {"account": per_account(1), "host": LimitRule(concurrency=1, by="host")})
    await register(store, slots=10)
    await submit(store, a_job(limits=SEVEN), a_job(limits=("host=x",)))
    seven, x = await claim(store)
    both = await submit_one(store, a_job(limits=("account=7", "host=x")))
    assert await claimed_ids(store) == []
    assert await blocked_by(store, both) == "account=7"
    await end(store, seven)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, both) == "host=x"
    # It holds nothing while it waits: the account is free for others.
    other = await submit_one(store, a_job(limits=SEVEN))
    [lease] = await claim(store)
    assert lease.job_id == other
    await end(store, x)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, both) == "account=7"
    await end(store, lease)
    assert await claimed_ids(store) == [both]


async def test_a_job_holds_each_of_its_keys_while_it_runs_and_gives_all_back(store: Store) -> None:
    await enforce(
        store, {"account": per_account(1), "all": LimitRule(concurrency=1), "each": LimitRule(1, by="tenant")}
    )
    await register(store)
    await submit(store, a_job(limits=SEVEN, tenant="acme"))
    lease = await claim_one(store)
    [running] = (await store.diagnose()).executing
    assert sorted(running.held) == ["account=7", "all", "each=acme"]
    await end(store, lease)
    assert (await store.diagnose()).executing == ()
    again = await submit_one(store, a_job(limits=SEVEN, tenant="acme"))
    assert await claimed_ids(store) == [again]


async def test_what_a_task_declares_holds_until_the_policy_says_otherwise(store: Store) -> None:
    name = "reports.export:concurrency:account"
    await declare_limits(store, "reports.export", {name: LimitRule(1, by="account", tasks=("reports.export",))})
    await register(store, slots=10)
    jobs = await submit(store, *(a_job(limits=(f"{name}=7",)) for _ in range(4)))
    assert await claimed_ids(store) == jobs[:1]
    await enforce(store, {name: LimitRule(3, by="account")})
    assert await claimed_ids(store) == jobs[1:3]
    await enforce(store)
    assert await claimed_ids(store) == []
    # A task that declares nothing any more takes its limits with it.
    await declare_limits(store, "reports.export", {})
    assert await claimed_ids(store) == jobs[3:]


async def test_a_value_may_hold_any_letter(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store, slots=10)
    values = ("a=b", "a", f"{PAUSE}task:x", 'ä "7"', "")
    jobs = await submit(store, *(a_job(limits=(f"account={value}",)) for value in values for _ in range(2)))
    assert await claimed_ids(store, free=10) == jobs[::2]
    assert [await blocked_by(store, job_id) for job_id in jobs[1::2]] == [f"account={value}" for value in values]


# ---------------------------------------------------------------------- never exceeded


async def test_a_limit_holds_over_all_workers(store: Store) -> None:
    await enforce(store, {"account": per_account(3)})
    jobs = await submit(store, *(a_job(limits=SEVEN) for _ in range(10)))
    await register(store, "w1")
    await register(store, "w2")
    first = await claimed_ids(store, "w1", free=2)
    second = await claimed_ids(store, "w2", free=2)
    assert (first, second) == (jobs[:2], jobs[2:3])


async def test_a_limit_is_never_exceeded_by_workers_that_ask_at_once(store: Store) -> None:
    await enforce(store, {"account": per_account(2), "all": LimitRule(concurrency=5)})
    jobs = await submit(store, *(a_job(limits=(f"account={number % 4}",)) for number in range(40)))
    account = {job_id: number % 4 for number, job_id in enumerate(jobs)}
    for worker_id in ("w1", "w2", "w3"):
        await register(store, worker_id)
    held: dict[str, list[Lease]] = {"w1": [], "w2": [], "w3": []}
    done: list[JobId] = []
    for _ in range(60):
        # Each hands in the first of what it holds and asks for more, all of them at the same moment.
        ended = {worker_id: leases[:1] for worker_id, leases in held.items()}
        answers = await asyncio.gather(
            *(
                ask(
                    store, worker_id, finished=[judge(Returned(b"1"), lease, BUILT_IN) for lease in ended[worker_id]]
                )
                for worker_id in held
            )
        )  # fmt: skip
        for worker_id, answer in zip(held, answers, strict=True):
            assert not answer.refused
            done += [lease.job_id for lease in ended[worker_id]]
            held[worker_id] = held[worker_id][1:] + list(answer.leases)
        running = Counter(account[lease.job_id] for leases in held.values() for lease in leases)
        assert all(count <= 2 for count in running.values()), running
        assert running.total() <= 5
        if len(done) == len(jobs):
            break
    assert sorted(done) == sorted(jobs)


@pytest.mark.parametrize("concurrency", range(1, 13))
async def test_a_limit_holds_beside_any_number_of_other_leases(store: Store, concurrency: int) -> None:
    await enforce(store, {"account": per_account(concurrency)})
    await register(store, "w1", slots=100)
    await register(store, "w2", slots=100)
    others = await submit(store, *(a_job() for _ in range(3)))
    assert await claimed_ids(store, "w1") == others
    sevens = await submit(store, *(a_job(limits=SEVEN) for _ in range(12)))
    claimed: list[JobId] = []
    for worker, free in (("w1", 1), ("w2", 7), ("w1", 1), ("w2", 7)):
        claimed += await claimed_ids(store, worker, free=free)
        assert len(claimed) <= concurrency
    assert claimed == sevens[:concurrency]


async def test_a_lowered_limit_lets_nothing_start_until_enough_has_ended(store: Store) -> None:
    await enforce(store, {"account": per_account(3)})
    jobs = await submit(store, *(a_job(limits=SEVEN) for _ in range(6)))
    await register(store, slots=10)
    leases = await claim(store)
    assert [lease.job_id for lease in leases] == jobs[:3]
    await enforce(store, {"account": per_account(1)})
    for lease in leases[:2]:
        await end(store, lease)
        assert await claimed_ids(store) == []
    await end(store, leases[2])
    assert await claimed_ids(store) == jobs[3:4]


# ---------------------------------------------------------------------- where jobs wait


async def test_blocked_jobs_keep_their_order_and_their_place_before_the_line(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    a1, a2, b1, a3, b2 = await submit(store, *(a_job(limits=limits) for limits in (SEVEN, SEVEN, (), SEVEN, ())))
    await register(store, slots=10)
    first = await claim_one(store)
    assert first.job_id == a1
    assert await claimed_ids(store, free=1) == [b1]
    assert (await blocked_by(store, a2), await blocked_by(store, a3)) == ("account=7", None)
    await end(store, first)
    second = await claim_one(store)
    assert second.job_id == a2
    await end(store, second)
    assert await claimed_ids(store) == [a3, b2]


async def test_an_open_park_is_merged_with_the_line_by_place(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    plain, a1, a2, a3, last = await submit(store, *(a_job(limits=limits) for limits in ((), SEVEN, SEVEN, SEVEN, ())))
    await register(store, slots=10)
    plain_lease, a1_lease = await claim(store, free=2)
    assert [plain_lease.job_id, a1_lease.job_id] == [plain, a1]
    late = await submit_one(store)
    assert await claimed_ids(store, free=1) == [last]
    assert [await blocked_by(store, job_id) for job_id in (a2, a3)] == ["account=7"] * 2
    # What was handed back unharmed goes to the front of the line, and so before the park.
    await report(store, judge(Released(), plain_lease, BUILT_IN))
    await enforce(store, {"account": per_account(3)})
    assert await claimed_ids(store) == [plain, a2, a3, late]


@pytest.mark.parametrize("values", [3, 30])
async def test_many_open_queues_are_merged_by_place(store: Store, values: int) -> None:
    await enforce(store, {"account": per_account(2)})
    keys = [(f"account={number}",) for number in range(values)]
    slots = 10 * values
    await register(store, slots=slots)
    running = await submit(store, *(a_job(limits=key) for key in keys * 2))
    held = await claim(store, free=slots)
    assert [lease.job_id for lease in held] == running
    blocked = await submit(store, *(a_job(limits=key) for key in [*keys, *reversed(keys), *keys]))
    assert await claimed_ids(store, free=slots) == []
    last = await submit_one(store)
    for lease in held:
        await end(store, lease)
    # Each account has room for two. The third job of each is passed over where its turn comes.
    assert await claimed_ids(store, free=values) == blocked[:values]
    assert await claimed_ids(store, free=slots) == [*blocked[values : 2 * values], last]
    assert {await blocked_by(store, job_id) for job_id in blocked[2 * values :]} == {key for (key,) in keys}


async def test_a_job_that_expires_in_an_open_queue_lets_the_next_one_start(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"account": per_account(3)})
    await register(store, slots=10)
    await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    held = await claim(store)
    jobs = [a_job(limits=SEVEN), a_job(limits=SEVEN, expires_ms=1_000), a_job(limits=SEVEN), a_job(limits=SEVEN)]
    first, stale, second, third = await submit(store, *jobs)
    assert await claimed_ids(store) == []
    clock.advance(2)
    for lease in held:
        await end(store, lease)
    assert await claimed_ids(store) == [first, second, third]
    assert await state_of(store, stale) == State.CANCELLED
    last = await submit_one(store, a_job(limits=SEVEN))
    assert await claimed_ids(store) == []
    assert await blocked_by(store, last) == "account=7"


async def test_a_park_is_sorted_too(store: Store) -> None:
    await enforce(store, {"account": per_account(2)})
    await register(store)
    first, _, third = await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    handed_back, other = await claim(store, free=2)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, third) == "account=7"
    # The first returns to its old place, and finds that only one may run by now: it waits before the third.
    await enforce(store, {"account": per_account(1)})
    await report(store, judge(Released(), handed_back, BUILT_IN))
    assert await claimed_ids(store) == []
    assert await blocked_by(store, first) == "account=7"
    await end(store, other)
    assert await claimed_ids(store) == [first]


async def test_what_is_blocked_neither_counts_as_waiting_for_a_slot_nor_ages_its_lane(
    store: Store, clock: ManualClock
) -> None:
    await enforce(store, {"account": per_account(1)})
    await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    await register(store)
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    clock.advance(seconds=60)
    [view] = (await store.snapshot()).classes
    assert (view.waiting, view.oldest_at) == (0, None)
    lane = (await store.stats()).lanes["medium"]
    assert (lane.waiting, lane.oldest_at, lane.executing) == (1, None, 1)
    await end(store, lease)
    assert await waiting(store) == 1  # Its limit has room: it could start.


async def test_a_job_that_comes_while_its_key_is_full_is_served_after_those_blocked(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    first, second = await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    third = await submit_one(store, a_job(limits=SEVEN))
    order = [lease.job_id]
    for _ in range(2):
        await end(store, lease)
        lease = await claim_one(store)
        order.append(lease.job_id)
    assert order == [first, second, third]


async def test_classes_that_wait_for_one_key_are_served_by_level(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store, slots=10, offers=("gpu",))
    await submit(store, a_job(limits=SEVEN))
    lease = await claim_one(store)
    low, gpu, high = await submit(
        store,
        a_job(lane="low", limits=SEVEN),
        a_job(needs=("gpu",), limits=SEVEN),
        a_job(lane="high", limits=SEVEN),
    )
    assert await claimed_ids(store, offers=("gpu",)) == []
    assert {await blocked_by(store, job_id) for job_id in (low, gpu, high)} == {"account=7"}
    order = []
    for _ in range(3):
        await end(store, lease)
        [lease] = await claim(store, offers=("gpu",))
        order.append(lease.job_id)
    assert order == [high, gpu, low]


async def test_more_blocked_jobs_than_one_claim_passes_over_are_no_wall(store: Store) -> None:
    # R5.54 for limits: the rest is looked at by the next exchange, which the answer asks for.
    await enforce(store, {"account": per_account(1)})
    blocked = await submit(store, *(a_job(limits=SEVEN) for _ in range(SKIPPED_MAX + 20)))
    await register(store)
    first = await claim_one(store)
    assert first.job_id == blocked[0]
    behind = await submit_one(store)
    answer = await ask(store, wait=True)
    assert (list(answer.leases), answer.more) == ([], True)
    answer = await ask(store, wait=True)
    assert ([lease.job_id for lease in answer.leases], answer.more) == ([behind], False)


async def test_a_worker_told_more_is_not_one_that_waits(store: Store, listen: Listen) -> None:
    await enforce(store, {"account": per_account(1)})
    await submit(store, *(a_job(limits=SEVEN) for _ in range(SKIPPED_MAX + 2)))
    await register(store)
    await claim_one(store)
    subscription = listen("w1")
    assert (await ask(store, wait=True)).more
    await submit_one(store)
    assert await subscription.wait(SILENCE) is None


# ---------------------------------------------------------------------- how room comes


async def free_by_finishing(store: Store, _clock: ManualClock, lease: Lease) -> None:
    await end(store, lease)


async def free_by_failing(store: Store, _clock: ManualClock, lease: Lease) -> None:
    await end(store, lease, Raised(BOOM))


async def free_by_snoozing(store: Store, _clock: ManualClock, lease: Lease) -> None:
    await end(store, lease, Snoozed(60_000))


async def free_by_crashing(store: Store, _clock: ManualClock, lease: Lease) -> None:
    await end(store, lease, Crashed("killed"))


async def free_by_cancelling(store: Store, _clock: ManualClock, lease: Lease) -> None:
    assert await store.cancel([lease.job_id]) == [State.EXECUTING]
    assert await claimed_ids(store, "w2") == []  # It still runs.
    await end(store, lease._replace(cancel_requested=True), Stopped())
    assert await state_of(store, lease.job_id) is State.CANCELLED


async def free_by_dying(store: Store, clock: ManualClock, lease: Lease) -> None:
    clock.advance(ms=LEASE_MS)
    await beat(store, "w2")
    await register(store, "w2")
    assert await claimed_ids(store, "w2") == []  # Counted until it is reaped, since it may still run.
    assert await reap(store) == [lease.job_id]


async def free_by_losing_the_claim(store: Store, clock: ManualClock, lease: Lease) -> None:
    # The reply was lost: the worker does not name what it was given.
    clock.advance(seconds=10)
    await store.cancel([lease.job_id])  # So that it does not come back first.
    await beat(store, "w1")


async def free_by_raising(store: Store, _clock: ManualClock, _lease: Lease) -> None:
    await enforce(store, {"account": per_account(2)})


async def free_by_removing(store: Store, _clock: ManualClock, _lease: Lease) -> None:
    await enforce(store)


WAYS = [
    free_by_finishing,
    free_by_failing,
    free_by_snoozing,
    free_by_crashing,
    free_by_cancelling,
    free_by_dying,
    free_by_losing_the_claim,
    free_by_raising,
    free_by_removing,
]


@pytest.mark.parametrize("free", WAYS, ids=lambda free: free.__name__.removeprefix("free_by_"))
async def test_room_is_used_however_it_comes(
    store: Store, clock: ManualClock, listen: Listen, free: Callable[[Store, ManualClock, Lease], Awaitable[None]]
) -> None:
    # R4.36, R3.71
    await enforce(store, {"account": per_account(1)})
    await register(store, "w1")
    await submit(store, a_job(limits=SEVEN))
    lease = await claim_one(store, "w1")
    blocked = await submit_one(store, a_job(limits=SEVEN))
    await register(store, "w2")
    assert not (await ask(store, "w2", wait=True)).leases
    assert await blocked_by(store, blocked) == "account=7"
    subscription = listen("w2")
    await free(store, clock, lease)
    if free is not free_by_dying and free is not free_by_cancelling:  # There it has looked again meanwhile.
        assert await subscription.wait(SOON) is not None
    assert await claimed_ids(store, "w2") == [blocked]
    assert await blocked_by(store, blocked) is None


async def test_a_key_is_given_back_once(store: Store) -> None:
    # R3.71: a report that comes twice, or late, frees nothing a second time.
    await enforce(store, {"account": per_account(1)})
    await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    await register(store)
    lease = await claim_one(store)
    ended = judge(Returned(b"1"), lease, BUILT_IN)
    await report(store, ended, ended)
    assert len(await claim(store)) == 1
    await report(store, ended)
    assert await claimed_ids(store) == []


async def test_a_worker_is_woken_for_each_class_whose_park_opens_and_only_if_it_serves_it(
    store: Store, listen: Listen
) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store, "w1", offers=("gpu",))
    await submit(store, a_job(limits=SEVEN))
    lease = await claim_one(store, "w1")
    await submit(store, a_job(limits=SEVEN, needs=("gpu",)))
    assert await claimed_ids(store, "w1", offers=("gpu",)) == []
    plain, able = listen("plain"), listen("able")
    await register(store, "plain")
    await register(store, "able", offers=("gpu",))
    await ask(store, "plain", wait=True)
    await ask(store, "able", offers=("gpu",), wait=True)
    await end(store, lease)
    assert await able.wait(SOON) is not None
    assert await plain.wait(SILENCE) is None


async def test_what_holds_no_key_wakes_nobody_when_it_ends(store: Store, listen: Listen) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store, "w1")
    await submit(store, a_job(limits=SEVEN), a_job(limits=("account=8",)), a_job(limits=SEVEN))
    _, eight = await claim(store, "w1")
    await register(store, "w2")
    await ask(store, "w2", wait=True)
    subscription = listen("w2")
    await end(store, eight)
    assert await subscription.wait(SILENCE) is None


# ---------------------------------------------------------------------- leaving a park otherwise


async def test_a_blocked_job_that_is_cancelled_leaves_its_place_to_the_next(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, second, third = await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    assert await store.cancel([second]) == [State.CANCELLED]
    assert (await the_job(store, second)).blocked_by is None
    await end(store, lease)
    assert await claimed_ids(store) == [third]


async def test_a_park_that_was_emptied_by_cancels_is_used_again(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, second = await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    await store.cancel([second])
    third = await submit_one(store, a_job(limits=SEVEN))
    assert await claimed_ids(store) == []
    assert await blocked_by(store, third) == "account=7"
    await end(store, lease)
    assert await claimed_ids(store) == [third]


async def test_a_park_that_was_emptied_holds_nobody_up(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, second = await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    await store.cancel([second])
    await end(store, lease)
    assert await waiting(store) == 0
    plain = await submit_one(store)
    assert await claimed_ids(store) == [plain]


@pytest.mark.parametrize("by_prune", [pytest.param(True, id="by the pruner"), pytest.param(False, id="by a claim")])
async def test_a_blocked_job_expires(store: Store, clock: ManualClock, by_prune: bool) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, hasty, patient = await submit(
        store, a_job(limits=SEVEN), a_job(limits=SEVEN, expires_ms=1_000), a_job(limits=SEVEN)
    )
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    clock.advance(seconds=1)
    if by_prune:
        assert await store.prune(Keep()) == 1
    await end(store, lease)
    assert await claimed_ids(store) == [patient]
    job = await the_job(store, hasty)
    assert (job.state, job.reason, job.blocked_by) == (State.CANCELLED, "expired", None)


async def test_a_blocked_job_that_was_cancelled_and_is_retried_waits_at_the_end(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, second, third = await submit(store, *(a_job(limits=SEVEN) for _ in range(3)))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    await store.cancel([second])
    assert await store.retry([second]) == [State.QUEUED]
    assert await blocked_by(store, second) is None
    assert await claimed_ids(store) == []
    assert await blocked_by(store, second) == "account=7"
    order = []
    for _ in range(2):
        await end(store, lease)
        lease = await claim_one(store)
        order.append(lease.job_id)
    assert order == [third, second]


async def test_a_job_that_failed_holds_nothing_while_it_backs_off_and_waits_anew(
    store: Store, clock: ManualClock
) -> None:
    # R5.68
    await enforce(store, {"account": per_account(1)})
    await register(store)
    first, second = await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    await end(store, lease, Raised(BOOM))
    lease = await claim_one(store)
    assert lease.job_id == second
    clock.advance(seconds=60)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, first) == "account=7"
    await end(store, lease)
    assert await claimed_ids(store) == [first]


# ---------------------------------------------------------------------- what is told of it


async def test_a_job_tells_what_it_is_blocked_for_and_then_what_it_was(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, second = await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    lease = await claim_one(store)
    clock.advance(seconds=2)
    assert await claimed_ids(store) == []
    job = await the_job(store, second)
    assert (job.blocked_by, job.blocked_for, job.blocked_ms, job.limits) == ("account=7", None, 0, SEVEN)
    clock.advance(seconds=5)
    await end(store, lease)
    lease = await claim_one(store)
    job = await the_job(store, second)
    assert (job.blocked_by, job.blocked_for, job.blocked_ms) == (None, "limit", 5_000)
    await end(store, lease)
    job = await the_job(store, second)
    assert (job.state, job.blocked_for, job.blocked_ms) == (State.COMPLETED, "limit", 5_000)


async def test_a_job_that_moves_from_park_to_park_was_put_aside_all_the_while(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"account": per_account(1), "host": LimitRule(concurrency=1, by="host")})
    await register(store)
    await submit(store, a_job(limits=SEVEN), a_job(limits=("host=x",)))
    seven, x = await claim(store)
    both = await submit_one(store, a_job(limits=("account=7", "host=x")))
    assert await claimed_ids(store) == []
    clock.advance(seconds=3)
    await end(store, seven)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, both) == "host=x"
    clock.advance(seconds=4)
    await end(store, x)
    assert await claimed_ids(store) == [both]
    assert (await the_job(store, both)).blocked_ms == 7_000


async def test_what_an_attempt_was_blocked_for_is_not_told_of_the_next(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store)
    _, second = await submit(store, a_job(limits=SEVEN), a_job(limits=SEVEN))
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    clock.advance(seconds=5)
    await end(store, lease)
    await end(store, await claim_one(store), Raised(BOOM))
    job = await the_job(store, second)
    assert (job.blocked_for, job.blocked_ms) == (None, 0)
    clock.advance(seconds=60)
    assert await claimed_ids(store) == [second]
    job = await the_job(store, second)
    assert (job.blocked_for, job.blocked_ms) == (None, 0)


# ---------------------------------------------------------------------- rates


async def starts(store: Store, clock: ManualClock, *, seconds: int, step_ms: int = 1_000) -> list[int]:
    """Claim and finish all jobs that may start. Return the seconds at which they started."""
    began_at, seen = clock(), []
    while clock() - began_at <= seconds * 1_000:
        for lease in await claim(store):
            seen.append((clock() - began_at) // 1_000)
            await end(store, lease)
        clock.advance(ms=step_ms)
        await beat(store)
    return seen


async def test_a_rate_starts_jobs_evenly_apart(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    await submit(store, *(a_job() for _ in range(10)))
    await register(store)
    assert await starts(store, clock, seconds=60) == [0, 10, 20, 30, 40, 50, 60]


async def test_a_burst_starts_at_once_and_what_follows_evenly(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": LimitRule(count=6, period_ms=60_000, burst=3)})
    await submit(store, *(a_job() for _ in range(10)))
    await register(store)
    assert await starts(store, clock, seconds=45) == [0, 0, 0, 10, 20, 30, 40]


async def test_a_rate_that_was_not_used_fills_up_to_its_burst_and_no_further(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": LimitRule(count=6, period_ms=60_000, burst=2)})
    await register(store)
    clock.advance(seconds=80)
    await beat(store)
    await submit(store, *(a_job() for _ in range(5)))
    assert await starts(store, clock, seconds=20) == [0, 0, 10, 20]


async def test_a_rate_is_counted_for_each_value_by_itself(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"account": LimitRule(count=6, period_ms=60_000, by="account")})
    seven, eight, again = await submit(store, *(a_job(limits=(f"account={number}",)) for number in (7, 8, 7)))
    await register(store)
    assert await claimed_ids(store) == [seven, eight]
    clock.advance(ms=TEN_SECONDS)
    assert await claimed_ids(store) == [again]


async def test_the_snapshot_tells_when_a_rate_lets_the_next_one_start(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    began_at = clock()
    await submit(store, a_job(), a_job())
    await register(store)
    await claim_one(store)
    clock.advance(seconds=3)
    assert (await store.snapshot()).next_due_at is None  # Nothing has tried yet.
    assert await claimed_ids(store) == []
    assert (await store.snapshot()).next_due_at == began_at + TEN_SECONDS
    assert await waiting(store) == 0
    clock.advance(ms=6_999)
    assert await claimed_ids(store) == []
    clock.advance(ms=1)
    assert await waiting(store) == 1
    assert (await store.snapshot()).next_due_at is None
    assert len(await claim(store)) == 1


async def test_the_sooner_of_a_delay_and_a_rate_is_told(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    began_at = clock()
    await submit(store, a_job(), a_job(), a_job(delay_ms=60_000))
    await register(store)
    assert len(await claim(store)) == 1
    assert (await store.snapshot()).next_due_at == began_at + TEN_SECONDS
    await submit(store, a_job(delay_ms=4_000))
    assert (await store.snapshot()).next_due_at == began_at + 4_000


async def test_a_rate_counts_starts_whatever_became_of_them(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    await submit(store, a_job(), a_job())
    await register(store)
    lease = await claim_one(store)
    await end(store, lease)
    assert await claimed_ids(store) == []
    clock.advance(ms=TEN_SECONDS)
    assert len(await claim(store)) == 1


async def test_a_rate_that_splits_no_millisecond_evenly_is_never_exceeded(store: Store, clock: ManualClock) -> None:
    # 7 in a second: 142.857 ms apart. No more than 7 in any second, by the store's milliseconds.
    await enforce(store, {"calls": LimitRule(count=7, period_ms=1_000)})
    await submit(store, *(a_job() for _ in range(30)))
    await register(store)
    moments: list[int] = []
    for _ in range(1_700):
        if (await store.snapshot()).next_due_at in (None, clock()):
            for lease in await claim(store):
                moments.append(clock())
                await end(store, lease)
        clock.advance(ms=1)
    assert moments[7] - moments[0] >= 1_000
    assert all(later - earlier >= 1_000 for earlier, later in zip(moments, moments[7:], strict=False))
    assert len(moments) >= 11


async def test_a_rate_and_a_cap_in_one_rule_hold_both(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": LimitRule(concurrency=2, count=6, period_ms=60_000, burst=2)})
    jobs = await submit(store, *(a_job() for _ in range(5)))
    await register(store)
    first, second = await claim(store)
    clock.advance(seconds=30)
    await beat(store, held=[first, second])
    assert await claimed_ids(store) == []  # The rate would, but two run.
    assert await blocked_by(store, jobs[2]) == "calls"
    await end(store, first)
    [third] = await claim(store)
    assert third.job_id == jobs[2]
    await end(store, second)
    [fourth] = await claim(store)
    assert fourth.job_id == jobs[3]
    await end(store, third)
    assert await claimed_ids(store) == []  # Now one runs, and the rate does not.
    clock.advance(ms=TEN_SECONDS)
    assert await claimed_ids(store) == jobs[4:]


async def test_a_job_held_back_by_a_rate_tells_so(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    _, second = await submit(store, a_job(), a_job())
    await register(store)
    await claim_one(store)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, second) == "calls"
    clock.advance(ms=TEN_SECONDS)
    await claim_one(store)
    job = await the_job(store, second)
    assert (job.blocked_for, job.blocked_ms) == ("rate", TEN_SECONDS)


async def test_a_worker_that_frees_a_slot_does_not_open_a_rate(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": LimitRule(concurrency=9, count=6, period_ms=60_000)})
    await submit(store, a_job(), a_job())
    await register(store)
    lease = await claim_one(store)
    assert await claimed_ids(store) == []
    await end(store, lease)
    assert await waiting(store) == 0
    assert (await store.snapshot()).next_due_at == clock() + TEN_SECONDS
    assert await claimed_ids(store) == []


async def test_a_rate_that_is_removed_binds_nobody_any_more(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    jobs = await submit(store, *(a_job() for _ in range(3)))
    await register(store)
    assert await claimed_ids(store) == jobs[:1]
    clock.advance(seconds=1)
    assert await claimed_ids(store) == []
    await enforce(store)
    assert await claimed_ids(store) == jobs[1:]


@pytest.mark.parametrize("removed_between", [False, True], ids=["changed", "removed and set again"])
async def test_another_rate_holds_from_the_moment_it_is_set(
    store: Store, clock: ManualClock, removed_between: bool
) -> None:
    # What was given away under the old rate must not keep the new one shut until tomorrow.
    await enforce(store, {"calls": LimitRule(count=1, period_ms=86_400_000)})
    jobs = await submit(store, *(a_job() for _ in range(5)))
    await register(store)
    assert await claimed_ids(store) == jobs[:1]
    if removed_between:
        await enforce(store)
    await enforce(store, {"calls": LimitRule(count=1, period_ms=1_000)})
    clock.advance(seconds=1)
    assert await claimed_ids(store) == jobs[1:2]
    assert await claimed_ids(store) == []


async def test_pruning_forgets_no_rate_that_still_binds(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"calls": SIX_A_MINUTE})
    await submit_one(store)
    await register(store)
    assert len(await claim(store)) == 1
    clock.advance(seconds=9)
    await store.prune(Keep())
    await submit_one(store)
    assert await claimed_ids(store) == []
    clock.advance(seconds=1)
    await store.prune(Keep())
    assert len(await claim(store)) == 1


# ---------------------------------------------------------------------- a limit and the rest


async def test_a_repeated_claim_takes_no_second_room(store: Store) -> None:
    await enforce(store, {"calls": LimitRule(concurrency=2, count=2, period_ms=60_000, burst=2)})
    jobs = await submit(store, *(a_job() for _ in range(3)))
    await register(store)
    claim_id = b"c" * 16
    first = await ask(store, free=1, claim_id=claim_id)
    again = await ask(store, free=1, claim_id=claim_id)
    assert list(first.leases) == list(again.leases)
    assert await claimed_ids(store) == jobs[1:2]


async def test_limits_of_namespaces_are_their_own(open_namespace: OpenStore) -> None:
    one, other = await open_namespace("one"), await open_namespace("other")
    await enforce(one, {"all": LimitRule(concurrency=1)})
    for store in (one, other):
        await register(store, f"worker of {store.namespace}")
        await submit(store, a_job(), a_job())
    assert len(await claim(one, "worker of one")) == 1
    assert len(await claim(other, "worker of other")) == 2


async def test_rules_that_one_process_writes_hold_for_all_that_share_the_store(
    store: Store, open_namespace: OpenStore
) -> None:
    other = await open_namespace("default") if store.abilities.shared else store
    await register(store, "w1")
    await register(other, "w2")
    jobs = await submit(store, *(a_job(limits=SEVEN) for _ in range(4)))
    assert await claimed_ids(other, "w2", free=1) == jobs[:1]  # Each has read the rules by now: there are none.
    await enforce(store, {"account": per_account(2), "calls": LimitRule(count=3, period_ms=60_000, burst=3)})
    [lease] = await claim(other, "w2")
    assert lease.job_id == jobs[1]
    assert await claimed_ids(store, "w1") == []
    await end(store, lease)
    assert await claimed_ids(other, "w2") == jobs[2:3]
    await enforce(other)
    assert await claimed_ids(store, "w1") == jobs[3:]


async def test_a_delayed_job_is_counted_once_it_is_due(store: Store, clock: ManualClock) -> None:
    await enforce(store, {"account": per_account(1)})
    delayed = await submit_one(store, a_job(limits=SEVEN, delay_ms=1_000))
    await register(store)
    now = await submit_one(store, a_job(limits=SEVEN))
    lease = await claim_one(store)
    assert lease.job_id == now
    clock.advance(seconds=1)
    assert await claimed_ids(store) == []
    assert await blocked_by(store, delayed) == "account=7"
    await end(store, lease)
    assert await claimed_ids(store) == [delayed]


async def test_many_keys_are_served_side_by_side(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    await register(store, slots=40)
    keys = [(f"account={number}",) for number in range(20)]
    await submit(store, *(a_job(limits=key) for key in keys for _ in range(2)))
    leases = await claim(store, free=40)
    assert len(leases) == 20
    queued = await store.find(JobQuery(states=(State.QUEUED,)))
    assert sorted(job.blocked_by or "" for job in queued) == sorted(key for (key,) in keys)
    await report(store, *(judge(Returned(b"1"), lease, BUILT_IN) for lease in leases))
    assert await waiting(store) == 20
    assert len(await claim(store, free=40)) == 20
    assert await waiting(store) == 0


async def test_a_park_stands_where_its_first_job_stands_also_when_that_is_another_one(store: Store) -> None:
    await enforce(store, {"account": per_account(1)})
    first, second, free, third, last = await submit(
        store, a_job(limits=SEVEN), a_job(limits=SEVEN), a_job(), a_job(limits=SEVEN), a_job()
    )
    await register(store)
    leases = {lease.job_id: lease for lease in await claim(store, free=3)}
    assert list(leases) == [first, free, last]  # The other two were put aside on the way.
    await end(store, leases[free], Released())  # Back to its place, which is between them.
    await end(store, leases[first])
    [lease] = await claim(store, free=1)
    assert lease.job_id == second
    await end(store, lease)
    assert [lease.job_id for lease in await claim(store, free=1)] == [free]
    assert [lease.job_id for lease in await claim(store, free=1)] == [third]
