"""The audit records actions on a store with actor, before and after. An action without effect is not recorded."""

from __future__ import annotations

from typing import Any

from headway.core.job import JobId, State
from headway.core.policy.enforced import pausing, resuming
from headway.core.policy.reader import read_policy
from headway.policy_store.rule_documents import change_paused
from headway.policy_store.versions import apply_policy, roll_back
from headway.security.audit import read_audit
from headway.security.audited_store import NAMED, audited
from headway.stores.base import Store
from tests.conformance.builders import a_job, an_id, claim_one, ended_job, register, submit_one

WHO = "cli:ada@engine"


async def told(store: Store) -> list[tuple[str, str, Any, Any]]:
    """Return the audit, the oldest entry first, and check its actors."""
    found = (await read_audit(store, limit=1_000))[::-1]
    assert {entry.who for entry in found} <= {WHO}
    return [(entry.what, entry.target, entry.before, entry.after) for entry in found]


async def test_jobs_that_an_operator_cancels_are_recorded_once(store: Store) -> None:
    # S-35
    mine = audited(store, WHO)
    await register(store)
    runs = await submit_one(store)
    await claim_one(store)
    waits, ended = await submit_one(store), await ended_job(store, State.CANCELLED)
    for _ in range(2):
        answer = await mine.cancel([waits, runs, ended, an_id()])
        assert answer == [State.CANCELLED, State.EXECUTING, State.CANCELLED, None]
    before, after = {waits: "queued", runs: "executing"}, {waits: "cancelled", runs: "executing"}
    assert await told(store) == [("task.cancel", f"{waits}, {runs}", before, after)]


async def test_jobs_that_an_operator_retries_or_removes_are_recorded(store: Store) -> None:
    # S-35
    mine = audited(store, WHO)
    dead, cancelled = await ended_job(store, State.DEAD_LETTER), await ended_job(store, State.CANCELLED)
    assert await mine.retry([dead]) == [State.QUEUED]
    assert await mine.retry([cancelled, dead]) == [State.QUEUED, State.QUEUED]
    await store.cancel([dead, cancelled])
    assert await mine.purge([State.DEAD_LETTER], None) == 0
    assert await mine.purge([State.CANCELLED], [dead]) == 1
    again = await ended_job(store, State.DEAD_LETTER)
    assert await mine.purge([State.DEAD_LETTER], None) == 1
    assert await told(store) == [
        ("dlq.replay", dead, {dead: "dead_letter"}, {dead: "queued"}),
        ("task.retry", cancelled, {cancelled: "cancelled"}, {cancelled: "queued"}),
        ("task.purge", dead, None, {"removed": 1}),
        ("dlq.purge", "any dead_letter", None, {"removed": 1}),
    ]
    assert await store.get([again]) == [None]


async def test_of_many_jobs_the_number_is_recorded(store: Store) -> None:
    # S-35
    jobs = [a_job() for _ in range(NAMED + 5)]
    await store.submit(jobs)
    ids: list[JobId] = [job.job_id for job in jobs]
    await audited(store, WHO).cancel(ids)
    assert await told(store) == [
        ("task.cancel", f"{', '.join(ids[:NAMED])} and 5 more", None, {"jobs": NAMED + 5}),
    ]


async def test_a_worker_that_is_sent_away_is_recorded_once(store: Store) -> None:
    # S-35
    mine = audited(store, WHO)
    await register(store)
    assert [await mine.drain("w1"), await mine.drain("w1"), await mine.drain("none")] == [True, True, False]
    assert await told(store) == [("worker.drain", "w1", {"status": "active"}, {"status": "draining"})]


async def test_pauses_are_recorded_with_what_was_paused(store: Store) -> None:
    # S-35
    mine = audited(store, WHO)
    none = {"everything": False, "lanes": [], "task_types": [], "tenants": []}
    for _ in range(2):
        await change_paused(mine, pausing("low", None, None))
    await change_paused(mine, pausing(None, None, "acme"))
    for _ in range(2):
        await change_paused(mine, resuming(None, None, None))
    both = none | {"lanes": ["low"], "tenants": ["acme"]}
    assert await told(store) == [
        ("pause", "lane low", none, none | {"lanes": ["low"]}),
        ("pause", "tenant acme", none | {"lanes": ["low"]}, both),
        ("resume", "lane low, tenant acme", both, none),
    ]


async def test_a_policy_is_recorded_when_it_comes_into_force(store: Store) -> None:
    # S-35
    mine = audited(store, WHO)
    first, second = read_policy({"crash_limit": 5}, "a"), read_policy({"crash_limit": 6}, "b")
    one = await apply_policy(mine, first, now_at=1, note="five")
    await apply_policy(mine, first, now_at=2)
    two = await apply_policy(mine, second, now_at=3, note="six")
    await roll_back(mine, now_at=4)
    was = {"version": 1, "digest": one.digest, "note": "five"}
    now = {"version": 2, "digest": two.digest, "note": "six"}
    back = {"version": 3, "digest": one.digest, "note": "rolled back to version 1"}
    assert await told(store) == [
        ("policy.put", "version 1", None, was),
        ("policy.put", "version 2", was, now),
        ("policy.put", "version 3", now, back),
    ]


async def test_without_a_name_nothing_is_recorded(store: Store) -> None:
    assert audited(store, None) is store
