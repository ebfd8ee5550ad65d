"""Documents that another program damaged or a newer release wrote: processes keep the last good version."""

from __future__ import annotations

import pytest

from headway.client.health_checks import check_documents
from headway.core.errors import PolicyError
from headway.core.policy.document import BUILT_IN, LimitRule, Policy
from headway.core.policy.enforced import PauseSet
from headway.maintenance.cron import CronSubmitter
from headway.policy_store.catalogue import (
    CRONS,
    TASKS,
    CronDocument,
    TaskEntry,
    TaskReader,
    publish_crons,
    publish_tasks,
    read_crons,
    read_tasks,
)
from headway.policy_store.cron_views import read_cron_views
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.damage import find_damaged
from headway.policy_store.rule_documents import PAUSES, POLICY, change_paused, declare_limits, read_paused, write_rules
from headway.policy_store.versions import CURRENT, apply_policy, current_version, history, read_current, roll_back
from headway.security.audited_store import audited
from headway.stores import unreadable
from headway.stores.base import POLICIES, RULES, JobQuery, Store
from headway.testing.clock import ManualClock
from headway.worker.backend.base import AppManifest, LeaseTimes
from headway.worker.backend.store import StoreBackend
from tests.conformance.builders import a_job, a_worker, claim, register, submit
from tests.conftest import OpenStore

BODIES = [b"{\xff", b'{"version": "six", "limits": 5, "task": 7}']


@pytest.fixture(autouse=True)
def _nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreadable, "_logged", set())


def limited(number: int) -> Policy:
    return Policy(limits={"account": LimitRule(number, by="account")})


def a_cron(task: str) -> CronDocument:
    return CronDocument(
        task=task, expression="* * * * *", tz="UTC", catch_up="all", overlap="allow", lane="medium", max_retries=0,
        timeout_ms=1_000, payload=b"\x01[]",
    )  # fmt: skip


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(event)]


@pytest.mark.parametrize("body", BODIES)
async def test_damaged_rules_keep_the_last_good_version(
    open_namespace: OpenStore, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_namespace("default")
    await write_rules(store, limited(1))
    await submit(store, *(a_job(limits=("account=7",)) for _ in range(3)))
    await register(store, slots=10, reserved=0)
    await store.write(RULES, POLICY, body)
    await store.stats()
    queue = await store.diagnose()
    assert queue.rules.limits["account"].concurrency == 1
    await declare_limits(store, "other", {"more": LimitRule(5)})  # Other parts can be written.
    assert len(await claim(store, free=3)) == 1
    [line] = logged(caplog, "document.unreadable")
    assert "kind=rules" in line
    assert f"name={POLICY}" in line
    assert "kept=true" in line.lower()
    await write_rules(store, limited(2))  # What is written anew replaces it.
    assert len(await claim(store, free=3)) == 1
    assert await find_damaged(store) == []


@pytest.mark.parametrize("body", BODIES)
async def test_damaged_pauses_are_replaced_by_the_next_pause(store: Store, body: bytes) -> None:
    await change_paused(store, lambda paused: PauseSet(tasks=("a",)))
    await store.write(RULES, PAUSES, body)
    assert await read_paused(store) == PauseSet()
    who = audited(store, "operator")
    assert await change_paused(who, lambda paused: PauseSet(tasks=("b",))) == await read_paused(store)
    assert (await read_paused(store)).tasks == ("b",)


@pytest.mark.parametrize("body", BODIES)
async def test_a_process_keeps_its_policy_if_the_store_cannot_say_which_is_current(
    store: Store, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await apply_policy(store, limited(3), now_at=1)
    in_force = CurrentPolicy()
    assert await in_force.refresh(store, every=0)
    await store.write(POLICIES, CURRENT, body)
    for _ in range(3):
        assert not await in_force.refresh(store, every=0)
    assert (in_force.version, in_force.policy) == (1, limited(3))
    assert len(logged(caplog, "policy.unreadable")) == 1
    with pytest.raises(PolicyError, match="apply the policy again"):
        await read_current(store)
    with pytest.raises(PolicyError, match="apply the policy again"):
        await roll_back(store, now_at=2)
    fresh = CurrentPolicy()
    assert not await fresh.refresh(store, every=0)
    assert fresh.policy == BUILT_IN
    applied = await apply_policy(audited(store, "operator"), limited(4), now_at=2)
    assert applied.version == await current_version(store) == 2
    assert await in_force.refresh(store, every=0)
    assert in_force.policy == limited(4)


@pytest.mark.parametrize("body", BODIES)
async def test_a_damaged_version_does_not_stop_the_next_one(store: Store, body: bytes) -> None:
    await apply_policy(store, limited(3), now_at=1)
    await apply_policy(store, limited(4), now_at=2)
    await store.write(POLICIES, "000002", body)
    assert [applied.version for applied in await history(store)] == [1]
    assert (await apply_policy(audited(store, "operator"), limited(5), now_at=3)).version == 3
    assert [applied.version for applied in await history(store)] == [1, 3]


@pytest.mark.parametrize("body", BODIES)
async def test_a_damaged_cron_ticks_as_last_read_and_holds_up_no_other(
    store: Store, clock: ManualClock, body: bytes
) -> None:
    crons = [a_cron("bad"), a_cron("good")]
    await publish_crons(store, crons, set(), clock())
    ticker = CronSubmitter(store, lambda task: True)
    await ticker()
    await store.write(CRONS, "bad", body)
    for _ in range(2):
        clock.advance(60)
        for _ in range(2):
            await ticker()
    for task in ("bad", "good"):
        assert len(await store.find(JobQuery(task=task))) == 2
    [document] = await store.read(CRONS, "bad")
    assert document.body == body  # A newer release may have written it.
    await CronSubmitter(store, lambda task: True)()  # A process that never read it leaves it out.
    assert [cron.task for cron, _ in await read_crons(store)] == ["good"]
    assert [view.task for view in await read_cron_views(store)] == ["good"]
    await publish_crons(store, crons, {"bad", "good"}, clock())
    assert [cron.task for cron, _ in await read_crons(store)] == ["bad", "good"]


@pytest.mark.parametrize("body", BODIES)
async def test_a_damaged_task_keeps_its_last_good_entry(store: Store, body: bytes) -> None:
    entries = [TaskEntry(name=name, lane="medium", executor="async") for name in ("bad", "good")]
    await publish_tasks(store, entries)
    reader = TaskReader()
    assert await read_tasks(store, reader) == entries
    await store.write(TASKS, "bad", body)
    assert await read_tasks(store, reader) == entries
    assert await read_tasks(store) == entries[1:]
    await publish_tasks(store, entries)
    assert await read_tasks(store) == entries


@pytest.mark.parametrize("body", BODIES)
async def test_a_worker_starts_on_damaged_documents_and_replaces_its_own(
    store: Store, clock: ManualClock, body: bytes
) -> None:
    damaged = [
        (POLICIES, CURRENT), (RULES, "costs"), (RULES, "declared.a"), (RULES, PAUSES), (RULES, POLICY), (TASKS, "a"),
        (CRONS, "a"), (CRONS, "b"),
    ]  # fmt: skip
    for kind, name in damaged:
        await store.write(kind, name, body)
    assert [(kind, name) for kind, name, _ in await find_damaged(store)] == damaged
    check = await check_documents(store)
    assert check.status == "fail"
    assert "rules declared.a" in check.detail
    backend = StoreBackend(store, CurrentPolicy())
    manifest = AppManifest(
        [TaskEntry(name="a", lane="medium", executor="async")], {"a": {"x": LimitRule(1)}}, [a_cron("a")]
    )
    worker = a_worker("w1", slots=2, reserved=0)
    await backend.register(worker, LeaseTimes(10, 30, 5), lambda _: manifest, reserved=0)
    await submit(store, a_job())
    [lease] = await claim(store)
    assert lease.worker_id == "w1"
    left = {(kind, name) for kind, name, _ in await find_damaged(store)}
    assert left <= {(POLICIES, CURRENT), (RULES, PAUSES), (RULES, POLICY), (RULES, "costs"), (CRONS, "b")}
    await apply_policy(store, limited(2), now_at=clock())
    assert (POLICIES, CURRENT) not in {(kind, name) for kind, name, _ in await find_damaged(store)}
